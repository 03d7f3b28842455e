"""Runs in shards: each shard can be resumed, and a merged run equals a run that was played whole."""

from __future__ import annotations

import json
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import DamagedRunError, MergeError, RunDirectoryError, UsageError
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.runs.execution.spending import max_spending
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import ReplayOf
from runner.runs.shards.merge import merge
from runner.spec.loader import load_spec
from tests.support.processes import nip_run_here, start_nip_run_silently, wait_for_requests
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

VARIABLE_FIELDS = ("started_at", "finished_at", "journal", "answers_from")
"""Fields of a manifest that may differ between a merged run and a whole run."""


def count_records(run: Path, *ignored_fields: str) -> Counter[str]:
    """Count a journal's records, ignoring their numbers, the journal's number and the given fields."""
    ignored = {"seq", "from", *ignored_fields}
    return Counter(
        json.dumps({**{k: v for k, v in record.items() if k not in ignored}, "journal": 0}, sort_keys=True)
        for record in journal_records(run)
    )


def read_files(run: Path) -> dict[str, Any]:
    """Read every file of a run except shards, lock and journal; the manifest lacks `VARIABLE_FIELDS`."""
    contents: dict[str, Any] = {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in (".lock", "journal.jsonl") and run / "shards" not in path.parents
    }
    manifest = json.loads(contents["manifest.json"])
    contents["manifest.json"] = list(
        {name: None if name in VARIABLE_FIELDS else value for name, value in manifest.items()}.items()
    )
    return contents


def play_and_merge_shards(spec: Path, results: Path, count: int, *overrides: str) -> FinishedRun:
    for number in range(1, count + 1):
        run_spec(spec, results, *overrides, shard=f"{number}/{count}")
    return merge(only_run(results).name, Results(results))


@pytest.mark.gate
@pytest.mark.parametrize(
    "changes",
    [
        {"rollouts": {"concurrency": 8, "per_datapoint": 2}, "dataset": {"group_by": "label"}},
        pytest.param({"stances": "both", "votes": 3}, marks=pytest.mark.full),
        pytest.param({"rollouts": {"num_responses_per_timestep": 2, "concurrency": 4}}, marks=pytest.mark.full),
    ],
)
def test_a_merged_run_has_the_files_of_a_whole_run(tmp_path: Path, changes: dict[str, Any]) -> None:
    shape = {"max_message_rounds": 4} if "num_responses_per_timestep" in str(changes) else {}
    spec = spec_file(tmp_path, size=8, **{"protocol": shape, **changes})
    whole_run = run_spec(spec, tmp_path / "whole").folder.path
    merged = play_and_merge_shards(spec, tmp_path / "parts", 2).folder.path
    assert read_files(merged) == read_files(whole_run)
    assert count_records(merged) == count_records(whole_run)
    sql = "SELECT run_id, status, rollouts, completions, cost_usd FROM runs"
    boards = [Results(tmp_path / name).board.query(sql)[1] for name in ("whole", "parts")]
    assert boards[0] == boards[1]
    assert len(boards[0]) == 1


@pytest.mark.full
def test_a_killed_shard_resumes_and_its_lost_calls_are_counted(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.02, 0.05]) as server:
        limits = {"max_completion_tokens": 50, "price": {"input": 1.0, "output": 2.0}}
        spec = spec_file(
            tmp_path, server.base_url, size=12, models={"m": limits}, budget={"usd": 5.0}, rollouts={"concurrency": 4}
        )
        whole_run = run_spec(spec, tmp_path / "whole")
        needed = server.requests
        server.change(held_after=needed + 6)
        process = start_nip_run_silently("spec.yaml", "--shard", "1/2", "-q", cwd=tmp_path)
        wait_for_requests(server, "requests", needed + 6, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        server.change(held_after=None)
        run = only_run(tmp_path / "results")
        with pytest.raises(MergeError, match="2 problems"):
            merge(run.name, Results(tmp_path / "results"))
        merged = play_and_merge_shards(spec, tmp_path / "results", 2)
    lost = [record for record in journal_records(merged.folder.path) if record["kind"] == "lost"]
    assert lost
    assert derived_files(merged.folder.path) == derived_files(whole_run.folder.path)
    plan = Plan(load_spec(spec))
    parts = [max_spending(plan, part).usd for _, part in merged.folder.started_parts()]
    assert max_spending(plan, merged.folder).usd == pytest.approx(sum(parts))
    assert merged.manifest.cost_usd_at_most == pytest.approx(sum(parts))
    assert merged.manifest.cost_usd == whole_run.manifest.cost_usd


@pytest.mark.full
def test_losses_within_the_limit_of_the_whole_run_are_not_requested_again(tmp_path: Path) -> None:
    """One shard loses a quarter of its games, which is an eighth of all games."""
    rollout_settings = {"concurrency": 2, "max_transport_failed": 0.2}
    with run_chat_server(malformed="returns x + 3.") as server:
        spec = spec_file(tmp_path, server.base_url, size=8, rollouts=rollout_settings)
        statuses = [run_spec(spec, tmp_path / "results", shard=f"{number}/2").status for number in (1, 2)]
        assert statuses == ["done", "incomplete"]
        request_count = server.requests
        merged = merge(only_run(tmp_path / "results").name, Results(tmp_path / "results"))
        assert server.requests == request_count
    assert merged.metrics["outcomes"]["transport_failed"] == 1
    assert merged.status == "done"


@pytest.mark.full
def test_a_shard_from_another_folder_is_merged_and_a_second_merge_changes_nothing(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=6)
    run_spec(spec, tmp_path / "results", shard="1/2")
    other_shard = run_spec(spec, tmp_path / "other", shard="2/2").folder.path
    copy = tmp_path / "copied" / "whatever"
    shutil.copytree(other_shard, copy)
    shutil.rmtree(tmp_path / "other")
    results = Results(tmp_path / "results")
    run = only_run(results.path)
    merged = merge(run.name, results, [RunFolder(copy)])
    assert read_files(merged.folder.path) == read_files(run_spec(spec, tmp_path / "whole").folder.path)
    files_before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()}
    second_merge = merge(run.name, results, [RunFolder(copy)])
    assert second_merge.was_finished
    files_after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()}
    assert {p: d for p, d in files_after.items() if p.name != ".lock"} == {
        p: d for p, d in files_before.items() if p.name != ".lock"
    }


@pytest.mark.full
def test_merging_the_same_shards_gives_the_same_journal(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4)
    merged = play_and_merge_shards(spec, tmp_path / "results", 2)
    journal = merged.folder.journal.read_bytes()
    shutil.copytree(merged.folder.parts_folder, tmp_path / "copy" / "runs" / merged.run_id / "shards")
    assert merge(merged.run_id, Results(tmp_path / "copy")).folder.journal.read_bytes() == journal


@pytest.mark.full
def test_a_run_is_either_whole_or_in_a_fixed_number_of_shards(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=6)
    run_spec(spec, tmp_path / "parts", shard="1/2")
    with pytest.raises(
        RunDirectoryError, match=r"is split into 2 shards \(started: 1/2\); resume a shard with --shard"
    ):
        run_spec(spec, tmp_path / "parts")
    with pytest.raises(RunDirectoryError, match=r"is split into 2 shards .*, not into 3"):
        run_spec(spec, tmp_path / "parts", shard="1/3")
    run_spec(spec, tmp_path / "whole")
    with pytest.raises(RunDirectoryError, match="was started without --shard"):
        run_spec(spec, tmp_path / "whole", shard="1/2")
    shutil.copy(
        only_run(tmp_path / "parts") / "shards/1-of-2/journal.jsonl", only_run(tmp_path / "whole") / "journal.jsonl"
    )
    with pytest.raises(RunDirectoryError, match="is the journal of shard 1/2, not of the whole run"):
        run_spec(spec, tmp_path / "whole", "rollouts.per_datapoint=2")


def test_a_shard_does_not_start_next_to_shards_of_another_spec(tmp_path: Path) -> None:
    with run_chat_server() as server:
        spec = spec_file(tmp_path, server.base_url, size=4)
        run_spec(spec, tmp_path / "results", run_id="r", shard="1/2")
        request_count = server.requests
        with pytest.raises(RunDirectoryError, match=r"1-of-2 has the run of another spec; these keys differ: seed\."):
            run_spec(spec, tmp_path / "results", "seed=8", run_id="r", shard="2/2")
        assert server.requests == request_count


@pytest.mark.full
def test_a_merged_run_is_extended_as_a_whole_and_shown_for_its_shards(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4)
    merged = play_and_merge_shards(spec, tmp_path / "parts", 2)
    assert run_spec(spec, tmp_path / "parts", shard="2/2").folder == merged.folder
    with pytest.raises(RunDirectoryError, match="was played in 2 shards, not in 3, and is already merged"):
        run_spec(spec, tmp_path / "parts", shard="1/3")
    longer = run_spec(spec, tmp_path / "parts", "rollouts.per_datapoint=2")
    assert longer.folder == merged.folder
    assert derived_files(longer.folder.path) == derived_files(
        run_spec(spec, tmp_path / "whole", "rollouts.per_datapoint=2").folder.path
    )
    with pytest.raises(RunDirectoryError, match="was extended after its merge"):
        run_spec(spec, tmp_path / "parts", "rollouts.per_datapoint=3", shard="2/2")


@pytest.mark.full
@pytest.mark.parametrize("name", ["metrics.json", pytest.param("messages.parquet", marks=pytest.mark.full)])
def test_merging_a_merged_run_again_rebuilds_a_missing_file_without_its_shards(tmp_path: Path, name: str) -> None:
    spec = spec_file(tmp_path, size=4)
    merged = play_and_merge_shards(spec, tmp_path / "results", 2)
    files_before, results = read_files(merged.folder.path), Results(tmp_path / "results")
    (merged.folder.path / name).unlink()
    with pytest.raises(DamagedRunError, match=f"nip-run merge {merged.run_id} rebuilds them for free"):
        run_spec(spec, tmp_path / "results", shard="1/2")
    results.board.rebuild()
    for _, part in merged.folder.started_parts():
        shutil.rmtree(part.path)
    done = nip_run_here("merge", merged.run_id, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert read_files(merged.folder.path) == files_before
    assert results.board.query("SELECT count(*) > 0 FROM metrics")[1] == [(True,)]


@pytest.mark.full
def test_a_shard_is_never_on_the_leaderboard_wherever_its_folder_is(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4)
    part = run_spec(spec, tmp_path / "results", shard="1/2")
    results = Results(tmp_path / "results")
    assert not results.board.path.exists()
    shutil.copytree(part.folder.path, tmp_path / "results/runs/put-here")
    assert results.board.rebuild() == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", [{"again": True}, {"replay": True}, {"set_model": {"m": "x"}}])
def test_options_that_exclude_shards_are_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    spec = spec_file(tmp_path, size=4)
    if "replay" in option:
        option = {"replay": _make_replay(run_spec(spec, tmp_path / "results"))}
    with pytest.raises(UsageError, match="--shard: "):
        run_spec(spec, tmp_path / "results", shard="1/2", **option)


def _make_replay(result: FinishedRun) -> Any:
    return ReplayOf(result.folder.path)
