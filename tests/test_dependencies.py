"""Dependencies in pyproject.toml have a minimum version and a reason, and the lock of the gate meets them."""

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
REQUIREMENTS = [
    *SETTINGS["build-system"]["requires"],
    *PROJECT["dependencies"],
    *(line for extra in PROJECT["optional-dependencies"].values() for line in extra),
]
LOCKED = {
    canonicalize_name(name): Version(version)
    for name, version in re.findall(r"^([\w.-]+)==(\S+)$", (ROOT / ".ci" / "lock.txt").read_text("utf-8"), re.MULTILINE)
}


def test_dependency_has_a_released_minimum_version_that_the_lock_meets() -> None:
    for line in sorted(set(REQUIREMENTS)):
        requirement = Requirement(line)
        (floor,) = requirement.specifier
        assert floor.operator == ">=", line
        assert not Version(floor.version).is_prerelease, line
        assert LOCKED[canonicalize_name(requirement.name)] >= Version(floor.version), line


def test_dependency_has_a_comment_with_its_reason() -> None:
    for line in sorted({line for line in REQUIREMENTS if not line.startswith("hatchling")}):
        assert re.search(rf'"{re.escape(line)}"(,|\]) *# \w', TEXT), line


ONLY_PRERELEASES = {"opentelemetry-exporter-prometheus", "opentelemetry-semantic-conventions"}
"""Dependencies of Ray's dashboard, which tests of jobs need. They have only prereleases."""


def test_lock_has_no_prereleases() -> None:
    assert {name for name, version in LOCKED.items() if version.is_prerelease} == ONLY_PRERELEASES
    assert len(LOCKED) > len(REQUIREMENTS)
