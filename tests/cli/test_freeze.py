"""`nip-run freeze`: how each file of a spec is pinned, or why it cannot be."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runner.results.provenance.file_pins import CHANGED, NO_REMOTE, NOT_IN_GIT, NOT_PUSHED
from tests.support.git_repositories import REMOTE_URL, commit_and_push, commit_folder, git
from tests.support.processes import nip_run_here
from tests.support.specs import spec_file


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = spec_file(tmp_path, size=2)
    path.write_text("# first\n" + path.read_text() + "# last\n")
    shutil.copytree("prompts/code_validation/nip", tmp_path / "prompts" / "mine")
    path.write_text(path.read_text().replace("prompts/code_validation/nip", "prompts/mine"))
    return path


def test_freeze_pins_pushed_files_and_writes_the_spec_unchanged(spec: Path) -> None:
    commit = commit_and_push(spec.parent)
    process = nip_run_here("freeze", "spec.yaml", "-o", "frozen.yaml", "--json", cwd=spec.parent)
    report = json.loads(process.stdout)
    assert (process.returncode, report["ok"], report["written"]) == (0, True, "frozen.yaml")
    assert {pin["part"]: (pin["repository"], pin["commit"], pin["path"]) for pin in report["pins"]} == {
        "spec": (REMOTE_URL, commit, "spec.yaml"),
        "dataset": (REMOTE_URL, commit, "data.jsonl"),
        "prompts": (REMOTE_URL, commit, "prompts/mine"),
        "protocol": (None, None, "nip-run:protocols/nip.yaml"),
    }
    assert (spec.parent / "frozen.yaml").read_bytes() == spec.read_bytes()  # the spec refers to no release


@pytest.mark.parametrize("reason", [NOT_IN_GIT, NO_REMOTE, NOT_PUSHED, CHANGED])
def test_freeze_reports_why_a_file_cannot_be_pinned(spec: Path, reason: str) -> None:
    if reason == NO_REMOTE:
        commit_folder(spec.parent)
    if reason in (NOT_PUSHED, CHANGED):
        commit_and_push(spec.parent)
    if reason == NOT_PUSHED:
        git(spec.parent, "commit", "-q", "--allow-empty", "-m", "more")
    if reason == CHANGED:
        (spec.parent / "data.jsonl").write_text((spec.parent / "data.jsonl").read_text() + "\n")
    process = nip_run_here("freeze", "spec.yaml", "-o", "frozen.yaml", cwd=spec.parent)
    assert process.returncode == 1
    (line,) = (line for line in process.stdout.splitlines() if line.startswith("dataset"))
    assert "not pinned" in line
    assert reason.partition(";")[0] in line
    assert (spec.parent / "frozen.yaml").read_bytes() == spec.read_bytes(), "its references are pinned all the same"


def test_freeze_overwrites_no_file_and_writes_into_no_other_folder(spec: Path) -> None:
    commit_and_push(spec.parent)
    (spec.parent / "there.yaml").write_text("mine")
    (spec.parent / "other").mkdir()
    for target in ("there.yaml", "spec.yaml", "other/frozen.yaml"):
        process = nip_run_here("freeze", "spec.yaml", "-o", target, cwd=spec.parent)
        assert process.returncode == 2, process.stdout + process.stderr
    assert (spec.parent / "there.yaml").read_text() == "mine"
    assert list((spec.parent / "other").iterdir()) == []
