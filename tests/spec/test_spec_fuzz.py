"""`nip-run check` handles generated specs and overrides without a crash.

Half are mutations of the shipped specs, half are drawn from the shipped schemas. An example fails if the exit code is
neither 0 nor 2, if nip-run reports a bug of its own, or if a file was written.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.configuration import set_hypothesis_home_dir

from tests.support.spec_fuzz import DepthCounter, Example, examples, try_example

pytestmark = pytest.mark.full

EXAMPLES = 250
"""Number of examples for each seed."""
CPU_SECONDS = 20.0
"""Time limit of an example; most take less than 0.1 seconds."""


@pytest.mark.parametrize("number", range(80))
def test_check_never_crashes_on_a_generated_spec(
    tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, number: int
) -> None:
    depth_counter = DepthCounter()
    set_hypothesis_home_dir(tmp_path_factory.mktemp("hypothesis"))

    @seed(number)
    @settings(
        max_examples=EXAMPLES, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(examples())
    def check_example(example: Example) -> None:
        started = time.process_time()
        try_example(example, tmp_path, depth_counter)
        assert time.process_time() - started < CPU_SECONDS, str(example)[:2000]

    check_example()
    assert depth_counter.steps["yaml"] > depth_counter.examples // 2, depth_counter.lines()
    assert depth_counter.steps["planned"] >= depth_counter.examples // 40, depth_counter.lines()
