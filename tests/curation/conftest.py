"""Fixtures with a sandbox mechanism, for tests that are not about the mechanism."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest

from runner.curation.program_tester import ProgramTester, ProgramTestSettings
from runner.curation.sandbox.mechanisms import Mechanism, UnavailableMechanism, list_mechanisms
from runner.curation.sandbox.sandbox import RunLimits, Sandbox, SandboxError


@pytest.fixture(scope="session")
def mechanism() -> Mechanism:
    """Strongest mechanism that starts here, without the attacks of `choose_mechanism`, which take seconds."""
    for candidate in list_mechanisms():
        if not isinstance(candidate, UnavailableMechanism):
            with suppress(SandboxError), Sandbox(candidate) as sandbox:
                sandbox.start()
                return candidate
    pytest.skip("this machine has no sandbox")


@pytest.fixture(scope="package")
def tester(mechanism: Mechanism) -> Iterator[ProgramTester]:
    limits = RunLimits(cpu_seconds=0.5, memory=256 << 20, output=1 << 16)
    with ProgramTester(mechanism, ProgramTestSettings(limits, workers=1)) as tester:
        yield tester
