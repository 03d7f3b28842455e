"""The same game has the same hashes wherever it stands, and its run names the repository that holds its spec."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.provenance.manifest_writer import git_state
from runner.runs.finished.selection import ReplayOf
from tests.support.runs import run_spec
from tests.support.specs import spec_file

CSV = "".join(
    [
        "split,id,label,question,solution,note\n",
        *(f"{s},{s}{i},{i % 2},q{i},s{i},\n" for s in ("a", "b") for i in range(3)),
    ]
)


def hashes(run: Path) -> dict[str, Any]:
    manifest = json.loads((run / "manifest.json").read_bytes())
    return {name: value for name, value in manifest.items() if name.endswith("sha256") or name == "dataset_selection"}


@pytest.mark.full
def test_a_replay_of_a_copy_has_the_hashes_of_the_run(tmp_path: Path) -> None:
    path = spec_file(tmp_path, dataset={"path": "data.csv", "split": "b"}, fine_tune=None)
    (tmp_path / "data.csv").write_text(CSV)
    run = run_spec(path, tmp_path / "results").folder.path
    copy = shutil.copytree(run, tmp_path / "elsewhere" / "copy")
    again = run_spec(copy, tmp_path / "other", replay=ReplayOf(copy)).folder.path
    assert len(hashes(run)) == 8
    assert hashes(again) == hashes(run)
    tasks = [
        Results(folder).board.query("SELECT task FROM runs")[1] for folder in (tmp_path / "results", tmp_path / "other")
    ]
    assert tasks[0] == tasks[1] != [(None,)]


@pytest.mark.full
def test_a_run_of_a_copy_goes_on_by_its_own_folder(tmp_path: Path) -> None:
    first = run_spec(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results").folder.path
    copy = shutil.copytree(first, tmp_path / "copy")
    run = run_spec(copy, tmp_path / "other").folder.path
    before = hashes(run)
    assert before == hashes(first)
    assert run_spec(run, tmp_path / "other", "rollouts.per_datapoint=2").folder.path == run
    assert hashes(run) | {"spec_sha256": ""} == before | {"spec_sha256": ""}


@pytest.mark.full
def test_a_copied_dataset_that_was_changed_is_another_one(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, size=4, fine_tune=None), tmp_path / "results").folder.path
    copy = shutil.copytree(run, tmp_path / "copy")
    dataset = copy / "inputs" / "dataset.jsonl"
    dataset.write_bytes(dataset.read_bytes().replace(b"x + 1.", b"x + 9."))
    other = hashes(run_spec(copy, tmp_path / "other").folder.path)
    assert {name for name, value in hashes(run).items() if other[name] != value} >= {
        "dataset_sha256",
        "dataset_source_sha256",
    }


@pytest.mark.full
def test_a_protocol_by_name_and_a_copy_of_its_file_are_one(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, fine_tune=None)
    run = run_spec(path, tmp_path / "results").folder
    shutil.copy(run.path / "inputs" / "protocol.yaml", tmp_path / "mine.yaml")
    mine = run_spec(path, tmp_path / "other", f"protocol.use={tmp_path / 'mine.yaml'}").folder
    rounds = run_spec(path, tmp_path / "third", "protocol.max_message_rounds=4").folder
    assert hashes(mine.path)["protocol_sha256"] == hashes(run.path)["protocol_sha256"]
    assert hashes(rounds.path)["protocol_sha256"] != hashes(run.path)["protocol_sha256"]


def test_the_repository_is_the_one_that_holds_the_spec(tmp_path: Path) -> None:
    mine, other = tmp_path / "mine", tmp_path / "other"
    commits = {}
    for folder in (mine, other):
        folder.mkdir()
        spec_file(folder, size=2, name=folder.name, fine_tune=None)
        (folder / ".gitignore").write_text("results/\n")
        commits[folder] = repository(folder)
    run = RunFolder(run_spec(mine / "spec.yaml", other / "results").folder.path)
    manifest = run.manifest()
    assert (manifest.git_commit, manifest.git_dirty) == (commits[mine], False)
    assert git_state(run.spec) == (None, None)  # the other repository is told to ignore it
    (other / "new.yaml").write_text("name: new\n")
    assert git_state(other / "new.yaml") == (commits[other], True)
    assert git_state(tmp_path / "spec.yaml") == (None, None)


def repository(folder: Path) -> str:
    """A git repository of all that a folder holds; its commit."""
    who = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")

    def git(*words: str) -> str:
        done = subprocess.run(("git", *who, *words), cwd=folder, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "all")
    return git("rev-parse", "HEAD")
