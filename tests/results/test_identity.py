"""Hashes do not depend on the location of a run, and a run records the repository of its spec."""

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


def read_hashes(run: Path) -> dict[str, Any]:
    manifest = json.loads((run / "manifest.json").read_bytes())
    return {name: value for name, value in manifest.items() if name.endswith("sha256") or name == "dataset_selection"}


@pytest.mark.full
def test_a_replay_of_a_copy_has_the_hashes_of_the_run(tmp_path: Path) -> None:
    path = spec_file(tmp_path, dataset={"path": "data.csv", "split": "b"}, fine_tune=None)
    (tmp_path / "data.csv").write_text(CSV)
    run = run_spec(path, tmp_path / "results").folder.path
    copy = shutil.copytree(run, tmp_path / "elsewhere" / "copy")
    replay = run_spec(copy, tmp_path / "other", replay=ReplayOf(copy)).folder.path
    assert len(read_hashes(run)) == 8
    assert read_hashes(replay) == read_hashes(run)
    tasks = [
        Results(folder).board.query("SELECT task FROM runs")[1] for folder in (tmp_path / "results", tmp_path / "other")
    ]
    assert tasks[0] == tasks[1] != [(None,)]


@pytest.mark.full
def test_run_of_a_copied_run_is_resumed_by_its_own_folder(tmp_path: Path) -> None:
    first = run_spec(spec_file(tmp_path, size=2, fine_tune=None), tmp_path / "results").folder.path
    copy = shutil.copytree(first, tmp_path / "copy")
    run = run_spec(copy, tmp_path / "other").folder.path
    before = read_hashes(run)
    assert before == read_hashes(first)
    assert run_spec(run, tmp_path / "other", "rollouts.per_datapoint=2").folder.path == run
    assert read_hashes(run) | {"spec_sha256": ""} == before | {"spec_sha256": ""}


@pytest.mark.full
def test_changed_copy_of_a_dataset_changes_the_hashes(tmp_path: Path) -> None:
    run = run_spec(spec_file(tmp_path, size=4, fine_tune=None), tmp_path / "results").folder.path
    copy = shutil.copytree(run, tmp_path / "copy")
    dataset = copy / "inputs" / "dataset.jsonl"
    dataset.write_bytes(dataset.read_bytes().replace(b"x + 1.", b"x + 9."))
    changed_hashes = read_hashes(run_spec(copy, tmp_path / "other").folder.path)
    assert {name for name, value in read_hashes(run).items() if changed_hashes[name] != value} >= {
        "dataset_sha256",
        "dataset_source_sha256",
    }


@pytest.mark.full
def test_built_in_protocol_and_a_copy_of_its_file_have_the_same_hash(tmp_path: Path) -> None:
    path = spec_file(tmp_path, size=2, fine_tune=None)
    run = run_spec(path, tmp_path / "results").folder
    shutil.copy(run.path / "inputs" / "protocol.yaml", tmp_path / "mine.yaml")
    mine = run_spec(path, tmp_path / "other", f"protocol.use={tmp_path / 'mine.yaml'}").folder
    rounds = run_spec(path, tmp_path / "third", "protocol.max_message_rounds=4").folder
    assert read_hashes(mine.path)["protocol_sha256"] == read_hashes(run.path)["protocol_sha256"]
    assert read_hashes(rounds.path)["protocol_sha256"] != read_hashes(run.path)["protocol_sha256"]


def test_run_records_the_repository_that_contains_the_spec(tmp_path: Path) -> None:
    spec_repository, other_repository = tmp_path / "mine", tmp_path / "other"
    commits = {}
    for folder in (spec_repository, other_repository):
        folder.mkdir()
        spec_file(folder, size=2, name=folder.name, fine_tune=None)
        (folder / ".gitignore").write_text("results/\n")
        commits[folder] = create_repository(folder)
    run = RunFolder(run_spec(spec_repository / "spec.yaml", other_repository / "results").folder.path)
    manifest = run.manifest()
    assert (manifest.git_commit, manifest.git_dirty) == (commits[spec_repository], False)
    assert git_state(run.spec) == (None, None)  # the other repository ignores it
    (other_repository / "new.yaml").write_text("name: new\n")
    assert git_state(other_repository / "new.yaml") == (commits[other_repository], True)
    assert git_state(tmp_path / "spec.yaml") == (None, None)


def create_repository(folder: Path) -> str:
    """Create a git repository with all files of a folder, and return its commit."""
    author_options = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")

    def git(*arguments: str) -> str:
        process = subprocess.run(
            ("git", *author_options, *arguments), cwd=folder, capture_output=True, text=True, check=True
        )
        return process.stdout.strip()

    git("init", "-q")
    git("add", ".")
    git("commit", "-q", "-m", "all")
    return git("rev-parse", "HEAD")
