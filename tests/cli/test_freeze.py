"""`nip-run freeze`: how each thing that a spec names is pinned, or why it cannot be."""

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


def test_what_was_pushed_is_pinned_and_the_spec_is_written_again(spec: Path) -> None:
    commit = commit_and_push(spec.parent)
    done = nip_run_here("freeze", "spec.yaml", "-o", "frozen.yaml", "--json", cwd=spec.parent)
    said = json.loads(done.stdout)
    assert (done.returncode, said["ok"], said["written"]) == (0, True, "frozen.yaml")
    assert {pin["part"]: (pin["repository"], pin["commit"], pin["path"]) for pin in said["pins"]} == {
        "spec": (REMOTE_URL, commit, "spec.yaml"),
        "dataset": (REMOTE_URL, commit, "data.jsonl"),
        "prompts": (REMOTE_URL, commit, "prompts/mine"),
        "protocol": (None, None, "nip-run:protocols/nip.yaml"),
    }
    assert (spec.parent / "frozen.yaml").read_bytes() == spec.read_bytes()  # which names no release


@pytest.mark.parametrize("why", [NOT_IN_GIT, NO_REMOTE, NOT_PUSHED, CHANGED])
def test_what_cannot_be_pinned_is_told_with_the_reason(spec: Path, why: str) -> None:
    if why == NO_REMOTE:
        commit_folder(spec.parent)
    if why in (NOT_PUSHED, CHANGED):
        commit_and_push(spec.parent)
    if why == NOT_PUSHED:
        git(spec.parent, "commit", "-q", "--allow-empty", "-m", "more")
    if why == CHANGED:
        (spec.parent / "data.jsonl").write_text((spec.parent / "data.jsonl").read_text() + "\n")
    done = nip_run_here("freeze", "spec.yaml", "-o", "frozen.yaml", cwd=spec.parent)
    assert done.returncode == 1
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("dataset"))
    assert "not pinned" in line
    assert why.partition(";")[0] in line
    assert (spec.parent / "frozen.yaml").read_bytes() == spec.read_bytes(), "its references are pinned all the same"


def test_nothing_is_written_over_or_into_another_folder(spec: Path) -> None:
    commit_and_push(spec.parent)
    (spec.parent / "there.yaml").write_text("mine")
    (spec.parent / "other").mkdir()
    for target in ("there.yaml", "spec.yaml", "other/frozen.yaml"):
        done = nip_run_here("freeze", "spec.yaml", "-o", target, cwd=spec.parent)
        assert done.returncode == 2, done.stdout + done.stderr
    assert (spec.parent / "there.yaml").read_text() == "mine"
    assert list((spec.parent / "other").iterdir()) == []
