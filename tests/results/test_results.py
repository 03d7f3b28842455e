"""A results folder: finding runs, naming new runs, and opening run folders."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from runner.base.errors import RunDirectoryError, UsageError
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, ReplaySource, Status
from runner.spec.loader import load_spec
from runner.training.plan import plan_of
from tests.support.specs import spec_file
from tests.support.training import training_spec


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Return the manifest of a newly started run."""
    folder = tmp_path_factory.mktemp("manifest")
    plan = plan_of(load_spec(spec_file(folder, size=2)))
    return Results(folder).open(plan, "mine")[1]


@pytest.fixture
def results(tmp_path: Path, manifest: Manifest) -> Results:
    """Return a folder with two runs of one name, an unfinished run, and a part of a training run."""
    results_folder = Results(tmp_path / "results")
    add_run(results_folder, manifest, "tiny-a", Status.DONE)
    add_run(results_folder, manifest, "tiny-b", Status.DONE)
    add_run(results_folder, manifest, "open", Status.INTERRUPTED)
    add_run(results_folder, replace(manifest, parent_run_id="learn", iteration=0), "learn-i0", Status.DONE)
    return results_folder


def add_run(results: Results, manifest: Manifest, run_id: str, status: Status) -> RunFolder:
    folder = results.run(run_id)
    folder.path.mkdir(parents=True)
    folder.write_manifest(replace(manifest, run_id=run_id, status=status))
    return folder


def run_ids_of(folders: list[RunFolder]) -> list[str]:
    return [folder.run_id for folder in folders]


def test_runs_are_listed_by_name_and_damaged_runs_are_reported(results: Results) -> None:
    results.run("open").manifest_path.write_text("{")
    (results.path / "runs" / "empty").mkdir()
    assert run_ids_of(list(results.runs())) == ["learn-i0", "tiny-a", "tiny-b"]
    (damage,) = results.damaged()
    assert "open/manifest.json is damaged" in damage


def test_missing_results_folder_has_no_runs_and_is_not_created(tmp_path: Path) -> None:
    results = Results(tmp_path / "none")
    assert (list(results.runs()), results.damaged(), results.parts_of("x")) == ([], [], [])
    assert not results.path.exists()


def test_run_is_found_by_id_prefix_or_folder(results: Results, tmp_path: Path) -> None:
    assert results.find("tiny-a").run_id == "tiny-a"
    assert results.find("op").run_id == "open"
    elsewhere = shutil.copytree(results.run("open").path, tmp_path / "elsewhere")
    assert results.find(str(elsewhere)).path == elsewhere


@pytest.mark.parametrize(
    ("name", "message"), [("tiny", "the start of 2 run ids"), ("x", "no run 'x'"), ("", "4 run ids")]
)
def test_unknown_or_ambiguous_run_name_is_refused(results: Results, name: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        results.find(name)


def test_exact_id_is_preferred_to_ids_with_that_prefix(results: Results, manifest: Manifest) -> None:
    add_run(results, manifest, "tiny", Status.DONE)
    assert results.find("tiny").run_id == "tiny"


def test_results_folder_of_a_run_is_derived_from_its_path(results: Results, monkeypatch: pytest.MonkeyPatch) -> None:
    assert Results.of(results.run("tiny-a")) == results
    monkeypatch.chdir(results.path)
    assert Results.of(RunFolder(Path("runs/tiny-b"))) == results


def test_parts_of_a_training_run_are_ordered_by_iteration(results: Results, manifest: Manifest) -> None:
    for name, iteration in (("learn-t10", 10), ("learn-i10", 10), ("learn-i2", 2)):
        add_run(results, replace(manifest, parent_run_id="learn", iteration=iteration), name, Status.RUNNING)
    assert run_ids_of(results.parts_of("learn")) == ["learn-i0", "learn-i2", "learn-i10", "learn-t10"]
    assert results.parts_of("lear") == []


def test_newest_run_is_the_last_started_regardless_of_manifest_times(results: Results, manifest: Manifest) -> None:
    started = {"a": 3, "b": 9, "c": 5, "part": 12}
    for name, minute in started.items():
        parent = "learn" if name == "part" else None
        run_manifest = replace(manifest, started_at=f"2030-01-01T00:{minute:02}:00Z", parent_run_id=parent, iteration=0)
        add_run(results, run_manifest, name, Status.DONE)
    for name, written in {"a": 40, "b": 10, "c": 20, "part": 50}.items():  # "a" ran longest
        modified = datetime(2030, 1, 1, 0, written, tzinfo=UTC).timestamp()
        os.utime(results.run(name).manifest_path, (modified, modified))
    assert results.find("last").run_id == "b"
    results.run("b").manifest_path.write_text("{")
    assert results.find("last").run_id == "c"


def test_few_manifests_are_read_to_find_or_name_a_run_among_many(
    results: Results, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    for day in range(1, 29):
        run_manifest = replace(manifest, started_at=f"2020-02-{day:02}T00:00:00Z")
        folder = add_run(results, run_manifest, f"day-{day}", Status.DONE)
        modified = datetime(2020, 2, day, tzinfo=UTC).timestamp()
        os.utime(folder.manifest_path, (modified, modified))
    for folder in map(results.run, ("tiny-a", "tiny-b", "open", "learn-i0")):
        shutil.rmtree(folder.path)
    read_ids: list[str] = []
    load = RunFolder.manifest

    def load_and_record(folder: RunFolder) -> Manifest:
        read_ids.append(folder.run_id)
        return load(folder)

    monkeypatch.setattr(RunFolder, "manifest", load_and_record)
    assert results.find("last").run_id == "day-28"
    assert read_ids == ["day-28", "day-27"]
    read_ids.clear()
    assert results.find("day-13").run_id == "day-13"
    assert results.name_for("new", again=True) == "new"
    assert results.name_for("new") == "new"
    assert read_ids == []
    assert results.name_for("day-3", again=True) == "day-3-2"
    assert read_ids == ["day-3"]
    read_ids.clear()
    assert len(list(results.runs())) == 28
    assert len(read_ids) == 28


# Names of runs


def test_run_has_the_name_of_its_plan_unless_it_is_repeated_or_replayed(results: Results) -> None:
    assert results.name_for("tiny-a") == "tiny-a"
    assert results.name_for("new", again=True) == "new"
    assert results.name_for("tiny-a", again=True) == "tiny-a-2"
    assert results.name_for("tiny-a", replay=True) == "tiny-a-replay"


def test_repeated_run_gets_the_next_free_name_or_resumes_an_unfinished_run(
    results: Results, manifest: Manifest
) -> None:
    add_run(results, manifest, "tiny-a-2", Status.DONE)
    add_run(results, manifest, "tiny-a-replay", Status.DONE)
    assert results.name_for("tiny-a", again=True) == "tiny-a-3"
    assert results.name_for("tiny-a", replay=True) == "tiny-a-replay-2"
    add_run(results, manifest, "tiny-a-3", Status.INTERRUPTED)
    assert results.name_for("tiny-a", again=True) == "tiny-a-3"


def test_a_replay_resumes_an_unfinished_replay_but_no_live_run(results: Results, manifest: Manifest) -> None:
    add_run(results, replace(manifest, replay_of=ReplaySource("first", 2)), "new", Status.INTERRUPTED)
    add_run(results, manifest, "live", Status.INTERRUPTED)
    assert results.name_for("new", replay=True) == "new"
    assert results.name_for("live", replay=True) == "live-replay"
    add_run(results, replace(manifest, replay_of=ReplaySource("first", 2)), "old", Status.DONE)
    assert results.name_for("old", replay=True) == "old-replay"


def test_again_leaves_an_unfinished_first_run_alone_since_its_files_may_be_changed(
    results: Results, manifest: Manifest
) -> None:
    # Messages about changed files of an unfinished run advise to add --again.
    add_run(results, manifest, "new", Status.INTERRUPTED)
    assert results.name_for("new", again=True) == "new-2"


def test_reserved_names_are_not_used_again(results: Results) -> None:
    assert results.name_for("new", again=True, reserved=["new"]) == "new-2"
    assert results.name_for("tiny-a", again=True, reserved=["tiny-a-2"]) == "tiny-a-3"
    assert results.name_for("tiny-a", reserved=["tiny-a"]) == "tiny-a"


# Opening run folders


def test_folder_opens_only_for_its_own_plan(tmp_path: Path) -> None:
    path, results = spec_file(tmp_path, size=2), Results(tmp_path / "results")
    plan = plan_of(load_spec(path))
    assert results.manifest_of(plan, "mine") is None
    folder, started_manifest = results.open(plan, "mine")
    folder.write_manifest(started_manifest)
    assert results.open(plan_of(load_spec(path, ["rollouts.per_datapoint=3"])), "mine")[0] == folder
    with pytest.raises(RunDirectoryError, match="has the run of another spec"):
        results.open(plan_of(load_spec(path, ["seed=8"])), "mine")


def test_training_run_and_its_games_are_different_runs(tmp_path: Path) -> None:
    path, results = training_spec(tmp_path), Results(tmp_path / "results")
    training = plan_of(load_spec(path))
    folder, started_manifest = results.open(training, "mine")
    folder.write_manifest(started_manifest)
    assert (started_manifest.identity, started_manifest.kind) == (training.identity, "training")
    with pytest.raises(RunDirectoryError, match="has the run of another spec"):
        results.open(training.games, "mine")


def test_run_is_locked_by_its_id(results: Results) -> None:
    with results.lock("tiny-a"), pytest.raises(RunDirectoryError, match="run tiny-a is in use by process"):
        results.lock("tiny-a").__enter__()
    with pytest.raises(UsageError, match="is not a valid run id"):
        results.lock("../tiny-a")


def test_leaderboard_contains_the_runs_of_its_folder(results: Results) -> None:
    for folder in results.runs():
        folder.spec.write_text(json.dumps({"name": "tiny"}))
    assert results.board.path == results.path / "leaderboard.duckdb"
    assert results.board.rebuild() == run_ids_of(list(results.runs()))
    assert results.board is results.board
