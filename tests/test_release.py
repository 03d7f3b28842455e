"""The workflows and the script that release a version; `.ci/tools/release.py` itself runs in `.ci/full`."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.paths import ROOT

WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
RELEASE = ROOT / ".github" / "workflows" / "release.yml"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
PYTHON_VERSIONS = re.findall(r"Python :: (3\.\d+)$", "\n".join(PROJECT["classifiers"]), re.MULTILINE)


def load_jobs(path: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(path.read_text("utf-8"))["jobs"]
    return loaded


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflow_pins_each_action_to_a_commit_and_states_its_version(path: Path) -> None:
    uses = re.findall(r"uses: (.*)", path.read_text("utf-8"))
    assert len(uses) >= 4
    assert [line for line in uses if not re.fullmatch(r"[\w/-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+", line)] == []


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_job_declares_its_permissions_and_time_limit(path: Path) -> None:
    assert yaml.safe_load(path.read_text("utf-8"))["permissions"] == {}
    assert all("permissions" in job and "timeout-minutes" in job for job in load_jobs(path).values())


def test_only_the_publish_job_can_sign_and_it_runs_no_code_of_the_repository() -> None:
    signing = {name for name, job in load_jobs(RELEASE).items() if "id-token" in job["permissions"]}
    publish = load_jobs(RELEASE)["publish"]
    assert signing == {"publish"}
    assert publish["environment"] == "pypi"
    assert publish["needs"] == ["build", "install"]
    assert all("uses" in step and "checkout" not in step["uses"] for step in publish["steps"])


def test_workflow_scripts_contain_no_expressions() -> None:
    scripts = [step.get("run", "") for path in WORKFLOWS for job in load_jobs(path).values() for step in job["steps"]]
    assert [script for script in scripts if "${{" in script] == []


def test_release_is_tested_on_every_supported_python() -> None:
    assert load_jobs(RELEASE)["install"]["strategy"]["matrix"]["python"] == PYTHON_VERSIONS
    assert f">={PYTHON_VERSIONS[0]}" == PROJECT["requires-python"]
    page = (ROOT / "docs" / "reference" / "stability.md").read_text("utf-8")
    assert f"{', '.join(PYTHON_VERSIONS[:-1])} and {PYTHON_VERSIONS[-1]}" in page
