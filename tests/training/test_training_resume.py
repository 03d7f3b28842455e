"""Resumed training runs: after any stage, and without starting again."""

from __future__ import annotations

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import JournalError, RunDirectoryError, RunError, UsageError, Waiting
from runner.base.hashing import file_hash
from runner.base.storage.atomic_files import read_json
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Status
from tests.support.processes import nip_run, nip_run_here
from tests.support.servers.chat_client import run_chat_server
from tests.support.training import (
    TRAIN,
    malt_changes,
    provider_changes,
    read_datasets,
    read_stages,
    run_training,
    training_spec,
)


@pytest.mark.gate
@pytest.mark.parametrize(
    "changes",
    [{}, pytest.param(malt_changes(rollouts={"concurrency": 3}), marks=pytest.mark.full)],
    ids=["expert_iteration", "malt"],
)
def test_run_killed_after_any_stage_resumes_to_the_same_result(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = training_spec(tmp_path, **changes)
    complete_run = run_training(path, tmp_path / "results").folder
    lines = (complete_run.path / "stages.jsonl").read_bytes().splitlines(keepends=True)
    state, datasets = (complete_run.path / "state.json").read_bytes(), read_datasets(complete_run)
    assert len(lines) > 8
    for line_count in range(1, len(lines)):
        shutil.copytree(tmp_path / "results", tmp_path / f"cut{line_count}")
        cut = RunFolder(tmp_path / f"cut{line_count}" / "runs" / complete_run.run_id)
        (cut.path / "stages.jsonl").write_bytes(
            b"".join(lines[:line_count]) + lines[line_count][: len(lines[line_count]) // 2]
        )
        cut.write_manifest(replace(cut.manifest(), status=Status.RUNNING))
        journals = {p: p.read_bytes() for p in sorted((cut.path.parent).glob("*/journal.jsonl"))}
        resumed = run_training(path, tmp_path / f"cut{line_count}").folder
        assert (resumed.path / "state.json").read_bytes() == state
        assert read_datasets(resumed) == datasets
        assert {p: p.read_bytes() for p in journals} == journals
        assert len(read_stages(resumed)) == len(lines)


@pytest.mark.full
def test_additional_iterations_continue_after_the_last_one(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    short_run = run_training(path, tmp_path / "results").folder
    before = read_datasets(short_run)
    longer_run = run_training(path, tmp_path / "results", "training.iterations=3").folder
    assert longer_run.run_id == short_run.run_id
    assert {name: data for name, data in read_datasets(longer_run).items() if name in before} == before
    assert len(list(longer_run.path.glob("iterations/*"))) == 3


@pytest.mark.full
def test_datasets_do_not_depend_on_the_hash_seed(tmp_path: Path) -> None:
    changes = {"selection": {"method": "weighted_sampling"}, "guess_replacement": {"proportion": 0.5}}
    training_spec(tmp_path, training=changes)
    datasets_by_seed = []
    for seed in ("0", "1"):
        done = nip_run("spec.yaml", "--results", f"r{seed}", cwd=tmp_path, PYTHONHASHSEED=seed)
        assert done.returncode == 0, done.stderr
        (folder,) = (p.parent for p in (tmp_path / f"r{seed}").glob("runs/*/stages.jsonl"))
        datasets_by_seed.append(read_datasets(RunFolder(folder)))
    assert datasets_by_seed[0] == datasets_by_seed[1]
    assert any(b"guess_replaced" in data for data in datasets_by_seed[0].values())


@pytest.mark.full
def test_fewer_iterations_than_completed_are_rejected(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    done = run_training(path, tmp_path / "results").folder
    before = done.manifest_path.read_bytes(), done.spec.read_bytes()
    with pytest.raises(UsageError, match=r"1 is fewer than the 2 iterations that run .* has completed"):
        run_training(path, tmp_path / "results", "training.iterations=1")
    assert (done.manifest_path.read_bytes(), done.spec.read_bytes()) == before


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("training.test.limit=3", "training.test.limit"),
        ("training.min_examples=3", "training.min_examples"),
        ("rollouts.per_datapoint=2", "rollouts.per_datapoint"),
        ("agents.prover.freeze=true", "agents.prover.freeze"),
        ("dataset.limit=5", "dataset.limit"),
        ("models.p.temperature=0.5", "models.p.temperature"),
    ],
)
def test_changed_identity_key_is_named_if_the_run_id_is_taken(tmp_path: Path, override: str, keys: str) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"trainers": trainers})
    with pytest.raises(Waiting):
        run_training(path, tmp_path / "results", run_id="mine")
    mutable_overrides = ("training.iterations=3", "rollouts.concurrency=2", "description=x", "models.p.timeout=9")
    removals = ("~training.trainers.p",) if "freeze" in override else ()
    with pytest.raises(RunDirectoryError, match=f"these keys differ: {keys}\\. Choose another"):
        run_training(path, tmp_path / "results", override, *mutable_overrides, *removals, run_id="mine")


@pytest.mark.full
def test_benchmark_and_training_cannot_share_a_run_id(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})
    run_training(path, tmp_path / "results", run_id="mine")
    with pytest.raises(RunDirectoryError, match=r"these keys differ: kind\. Choose"):
        run_training(path, tmp_path / "results", "kind=benchmark", "training=null", run_id="mine")


def test_run_id_too_long_for_its_parts_is_rejected_before_any_file_is_written(tmp_path: Path) -> None:
    path = training_spec(tmp_path, budget={"completions": 10_000})
    for run_id in ("x" * 115, "x" * 120):
        with pytest.raises(UsageError, match="choose an id of at most 114"):
            run_training(path, tmp_path / "results", run_id=run_id)
    refused = nip_run_here("spec.yaml", "--run-id", "x" * 115, cwd=tmp_path)
    assert refused.returncode == 2
    assert not (tmp_path / "results").exists()


@pytest.mark.full
def test_missing_or_damaged_log_does_not_start_jobs_again(tmp_path: Path) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    with pytest.raises(Waiting):
        run_training(path, tmp_path / "results", run_id="mine")
    log = tmp_path / "results" / "runs" / "mine" / "stages.jsonl"
    log_bytes = log.read_bytes()
    second = log_bytes.index(b"\n") + 1
    for damaged, message in (
        (log_bytes[:second] + b"x" + log_bytes[second + 1 :], "is damaged although the run has built datasets"),
        (b"x" + log_bytes[1:], "is damaged although the run has built datasets"),
        (b"x" + log_bytes.splitlines(keepends=True)[0][1:], "is damaged although the run has built datasets"),
        (b"", "is damaged although the run has built datasets"),
        (None, "is missing although the run has built datasets"),
    ):
        log.unlink() if damaged is None else log.write_bytes(damaged)
        for _ in range(2):
            with pytest.raises(JournalError, match=message):
                run_training(path, tmp_path / "results", run_id="mine", set_model={"p": "x"})
    log.write_bytes(log_bytes)
    run_training(path, tmp_path / "results", run_id="mine", set_model={"p": "x"})


@pytest.mark.full
@pytest.mark.parametrize(("part", "file"), [("i0", "manifest.json"), ("i0", "journal.jsonl"), ("t0", "spec.yaml")])
def test_error_for_a_missing_part_file_names_the_part(tmp_path: Path, part: str, file: str) -> None:
    trainers = {"p": {"backend": "files"}, "v": {"backend": "dummy"}}
    test = {"scheme": "all", "limit": 2}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers, "test": test})
    with pytest.raises(Waiting):
        run_training(path, tmp_path / "results", run_id="mine")
    (tmp_path / "results" / "runs" / f"mine-{part}" / file).unlink()
    part_name = "the games" if part == "i0" else "the test"
    with pytest.raises(RunError, match=f"run mine-{part} has {part_name} of iteration 0 of training run mine"):
        run_training(path, tmp_path / "results", run_id="mine", set_model={"p": "x"})


@pytest.mark.gate
@pytest.mark.parametrize("missing", [("mine/metrics.json",), ("mine-t1/metrics.json", "mine-i0/rollouts.parquet")])
def test_missing_outputs_of_a_training_run_and_its_parts_are_rebuilt_from_journals(
    tmp_path: Path, missing: tuple[str, ...]
) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})
    run_training(path, tmp_path / "results", run_id="mine")
    runs, board = tmp_path / "results" / "runs", Results(tmp_path / "results").board
    rows, journals = board.query("SELECT * FROM metrics ORDER BY ALL"), [*map(file_hash, runs.glob("*/*.jsonl"))]

    def contents() -> list[Any]:
        return [read_json(runs / name) if name.endswith(".json") else file_hash(runs / name) for name in missing]

    before = contents()
    for name in missing:
        (runs / name).unlink()
    board.rebuild()
    run_training(path, tmp_path / "results", run_id="mine")
    assert contents() == before
    assert board.query("SELECT * FROM metrics ORDER BY ALL") == rows
    assert [*map(file_hash, runs.glob("*/*.jsonl"))] == journals, "no model was called, and no job was started"
    assert run_training(path, tmp_path / "results", run_id="mine").was_finished


@pytest.mark.full
def test_second_process_gets_an_error_that_names_the_process_using_the_run(tmp_path: Path) -> None:
    path = training_spec(tmp_path)
    with Results(tmp_path / "results").lock("mine"):
        second = nip_run("spec.yaml", "--run-id", "mine", cwd=tmp_path)
    assert second.returncode == 1
    assert f"run mine is in use by process {os.getpid()} on " in second.stderr
    assert list((tmp_path / "results" / "runs").iterdir()) == [tmp_path / "results" / "runs" / "mine"]
    run_training(path, tmp_path / "results", run_id="mine")


@pytest.mark.full
def test_missing_or_edited_dataset_is_rebuilt_before_training(tmp_path: Path) -> None:
    failing_trainer = {"backend": "command", "command": ["false", "{dataset}", "{model_file}"], "poll_seconds": 0.05}
    trainers = {"p": {"backend": "files"}, "v": {**failing_trainer, "format": "openai"}}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    with pytest.raises(RunError, match="training v failed"):
        run_training(path, tmp_path / "results")
    (folder,) = (p.parent for p in (tmp_path / "results").glob("runs/*/stages.jsonl"))
    before = read_datasets(RunFolder(folder))
    (folder / "iterations" / "0" / "p.sft.jsonl").unlink()
    (folder / "iterations" / "0" / "v.sft.jsonl").write_text("tampered", "utf-8")
    with pytest.raises(Waiting):
        run_training(path, tmp_path / "results", "training.trainers.v={backend: dummy}")
    assert read_datasets(RunFolder(folder)) == before
    assert "v.sft.jsonl was edited and will be rebuilt" in (folder / "run.log").read_text("utf-8")


@pytest.mark.full
def test_trained_model_keeps_its_dataset_when_the_format_changes(tmp_path: Path) -> None:
    failing_trainer = {"backend": "command", "command": ["false", "{dataset}", "{model_file}"], "poll_seconds": 0.05}
    trainers = {"p": {"backend": "dummy"}, "v": failing_trainer}
    path = training_spec(tmp_path, training={"iterations": 1, "trainers": trainers})
    with pytest.raises(RunError, match="training v failed"):
        run_training(path, tmp_path / "results", run_id="mine")
    dataset = tmp_path / "results" / "runs" / "mine" / "iterations" / "0" / "p.sft.jsonl"
    before = file_hash(dataset)
    overrides = ("+training.trainers.p.format=trl", "training.trainers.v={backend: dummy}")
    result = run_training(path, tmp_path / "results", *overrides, run_id="mine")
    (row,) = result.metrics["iterations"]
    assert row["models"]["p"]["lineage"][0]["dataset_sha256"] == before == file_hash(dataset)
    report = [record for record in read_stages(result.folder) if record["stage"] == "datasets"][-1]
    assert {group: entry["format"] for group, entry in report["groups"].items()} == {"p": "openai", "v": "openai"}


@pytest.mark.full
def test_training_run_works_inside_a_running_event_loop(tmp_path: Path) -> None:
    path = training_spec(tmp_path, training={"iterations": 1})

    async def cell() -> str:
        return str(run_training(path, tmp_path / "results").manifest.status)

    assert asyncio.run(cell()) == "done"


@pytest.mark.full
def test_output_of_a_training_run_reports_problems_of_its_parts(tmp_path: Path) -> None:
    with run_chat_server(kind="bad_decision") as server:
        retry = {"invalid_response": {"attempts": 2, "then": "empty_message"}}
        training_spec(tmp_path, **provider_changes(server.base_url, training={"min_examples": 1000}, retry=retry))
        done = nip_run_here("spec.yaml", cwd=tmp_path)
        rerun = nip_run_here("spec.yaml", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    (run_id,) = (p.parent.name for p in tmp_path.glob("results/runs/*/stages.jsonl"))
    show_output = nip_run_here("show", run_id, cwd=tmp_path).stdout
    for output in (done.stderr, rerun.stderr, show_output):
        assert f"warning: {run_id}-i0: {3 * TRAIN} of {3 * TRAIN} rollouts ended undecided, " in output
        assert "calls were repeated because of unparsable answers (and in 2 more parts)\n" in output
        assert f"  show it: nip-run show {run_id}-i0 --undecided\n" in output
    assert rerun.stderr.count("ended undecided") == 1
