"""What pyproject.toml asks of others: a floor that is a release and a reason for each, and the gate's lock meets it."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
TEXT = (ROOT / "pyproject.toml").read_text("utf-8")
SETTINGS = tomllib.loads(TEXT)
PROJECT = SETTINGS["project"]
WANTED = [
    *SETTINGS["build-system"]["requires"],
    *PROJECT["dependencies"],
    *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
]
LOCKED = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / ".ci" / "lock.txt").read_text("utf-8"), re.MULTILINE)
}


def test_a_dependency_has_a_released_floor_that_the_lock_meets() -> None:
    for line in sorted(set(WANTED)):
        wanted = Requirement(line)
        (floor,) = wanted.specifier
        assert floor.operator == ">=", line
        assert not Version(floor.version).is_prerelease, line
        assert LOCKED[canonicalize_name(wanted.name)] >= Version(floor.version), line


def test_a_dependency_has_its_reason_beside_it() -> None:
    for line in sorted({line for line in WANTED if not line.startswith("hatchling")}):
        assert re.search(rf'"{re.escape(line)}"(,|\]) *# \w', TEXT), line


NEVER_RELEASED = {"opentelemetry-exporter-prometheus", "opentelemetry-semantic-conventions"}
"""Of Ray's dashboard, which tests of jobs need: there are betas of these alone."""


def test_the_lock_has_no_version_before_its_release() -> None:
    assert {name for name, version in LOCKED.items() if version.is_prerelease} == NEVER_RELEASED
    assert len(LOCKED) > len(WANTED)
