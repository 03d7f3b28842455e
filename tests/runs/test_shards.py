"""A run in shards: its parts go on like any run, and merged they are the run that one process would have made."""

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

CLOCKS = ("started_at", "finished_at", "journal", "answers_from")
"""All of a manifest that may differ between a run in shards and one that was played whole."""


def records(run: Path, *clocks: str) -> Counter[str]:
    """The records of a journal as a set: without their numbers, the number of the journal, and these times."""
    left_out = {"seq", "from", *clocks}
    return Counter(
        json.dumps({**{k: v for k, v in record.items() if k not in left_out}, "journal": 0}, sort_keys=True)
        for record in journal_records(run)
    )


def files(run: Path) -> dict[str, Any]:
    """Every file of a run but its parts, its lock and its journal; its manifest without `CLOCKS`."""
    found: dict[str, Any] = {
        path.relative_to(run).as_posix(): path.read_bytes()
        for path in sorted(run.rglob("*"))
        if path.is_file() and path.name not in (".lock", "journal.jsonl") and run / "shards" not in path.parents
    }
    manifest = json.loads(found["manifest.json"])
    found["manifest.json"] = list({name: None if name in CLOCKS else one for name, one in manifest.items()}.items())
    return found


def in_parts(spec: Path, results: Path, of: int, *overrides: str) -> FinishedRun:
    for number in range(1, of + 1):
        run_spec(spec, results, *overrides, shard=f"{number}/{of}")
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
def test_merged_every_file_is_that_of_one_process(tmp_path: Path, changes: dict[str, Any]) -> None:
    shape = {"max_message_rounds": 4} if "num_responses_per_timestep" in str(changes) else {}
    spec = spec_file(tmp_path, size=8, **{"protocol": shape, **changes})
    whole = run_spec(spec, tmp_path / "whole").folder.path
    merged = in_parts(spec, tmp_path / "parts", 2).folder.path
    assert files(merged) == files(whole)
    assert records(merged) == records(whole)
    rows = "SELECT run_id, status, rollouts, completions, cost_usd FROM runs"
    boards = [Results(tmp_path / name).board.query(rows)[1] for name in ("whole", "parts")]
    assert boards[0] == boards[1]
    assert len(boards[0]) == 1


@pytest.mark.full
def test_a_part_that_is_killed_goes_on_and_its_lost_calls_are_counted(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.02, 0.05]) as server:
        limits = {"max_completion_tokens": 50, "price": {"input": 1.0, "output": 2.0}}
        spec = spec_file(
            tmp_path, server.base_url, size=12, models={"m": limits}, budget={"usd": 5.0}, rollouts={"concurrency": 4}
        )
        whole = run_spec(spec, tmp_path / "whole")
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
        merged = in_parts(spec, tmp_path / "results", 2)
    lost = [record for record in journal_records(merged.folder.path) if record["kind"] == "lost"]
    assert lost
    assert derived_files(merged.folder.path) == derived_files(whole.folder.path)
    plan = Plan(load_spec(spec))
    parts = [max_spending(plan, part).usd for _, part in merged.folder.started_parts()]
    assert max_spending(plan, merged.folder).usd == pytest.approx(sum(parts))
    assert merged.manifest.cost_usd_at_most == pytest.approx(sum(parts))
    assert merged.manifest.cost_usd == whole.manifest.cost_usd


@pytest.mark.full
def test_what_was_allowed_to_be_lost_of_all_is_lost_after_the_merge(tmp_path: Path) -> None:
    """One shard loses a quarter of its games, which is an eighth of all; nobody is asked for them again."""
    allowed = {"concurrency": 2, "max_transport_failed": 0.2}
    with run_chat_server(malformed="returns x + 3.") as server:
        spec = spec_file(tmp_path, server.base_url, size=8, rollouts=allowed)
        statuses = [run_spec(spec, tmp_path / "results", shard=f"{number}/2").status for number in (1, 2)]
        assert statuses == ["done", "incomplete"]
        asked = server.requests
        merged = merge(only_run(tmp_path / "results").name, Results(tmp_path / "results"))
        assert server.requests == asked
    assert merged.metrics["outcomes"]["transport_failed"] == 1
    assert merged.status == "done"


@pytest.mark.full
def test_a_part_from_elsewhere_is_merged_and_a_merge_is_not_made_twice(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=6)
    run_spec(spec, tmp_path / "results", shard="1/2")
    other = run_spec(spec, tmp_path / "other", shard="2/2").folder.path
    copy = tmp_path / "copied" / "whatever"
    shutil.copytree(other, copy)
    shutil.rmtree(tmp_path / "other")
    results = Results(tmp_path / "results")
    run = only_run(results.path)
    merged = merge(run.name, results, [RunFolder(copy)])
    assert files(merged.folder.path) == files(run_spec(spec, tmp_path / "whole").folder.path)
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()}
    again = merge(run.name, results, [RunFolder(copy)])
    assert again.was_finished
    after = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in run.rglob("*") if path.is_file()}
    assert {p: d for p, d in after.items() if p.name != ".lock"} == {
        p: d for p, d in before.items() if p.name != ".lock"
    }


@pytest.mark.full
def test_the_same_parts_make_the_same_journal(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4)
    merged = in_parts(spec, tmp_path / "results", 2)
    journal = merged.folder.journal.read_bytes()
    shutil.copytree(merged.folder.parts_folder, tmp_path / "copy" / "runs" / merged.run_id / "shards")
    assert merge(merged.run_id, Results(tmp_path / "copy")).folder.journal.read_bytes() == journal


@pytest.mark.full
def test_a_run_is_played_in_one_way_alone(tmp_path: Path) -> None:
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


@pytest.mark.full
def test_once_merged_a_run_goes_on_whole_and_is_shown_to_its_shards(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4)
    merged = in_parts(spec, tmp_path / "parts", 2)
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
def test_merging_a_merged_run_again_rebuilds_a_missing_file_without_its_parts(tmp_path: Path, name: str) -> None:
    spec = spec_file(tmp_path, size=4)
    merged = in_parts(spec, tmp_path / "results", 2)
    before, results = files(merged.folder.path), Results(tmp_path / "results")
    (merged.folder.path / name).unlink()
    with pytest.raises(DamagedRunError, match=f"nip-run merge {merged.run_id} rebuilds them for free"):
        run_spec(spec, tmp_path / "results", shard="1/2")
    results.board.rebuild()
    for _, part in merged.folder.started_parts():
        shutil.rmtree(part.path)
    done = nip_run_here("merge", merged.run_id, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert files(merged.folder.path) == before
    assert results.board.query("SELECT count(*) > 0 FROM metrics")[1] == [(True,)]


@pytest.mark.full
def test_nothing_of_a_part_is_on_the_board_wherever_its_folder_is_put(tmp_path: Path) -> None:
    spec = spec_file(tmp_path, size=4)
    part = run_spec(spec, tmp_path / "results", shard="1/2")
    results = Results(tmp_path / "results")
    assert not results.board.path.exists()
    shutil.copytree(part.folder.path, tmp_path / "results/runs/put-here")
    assert results.board.rebuild() == []


@pytest.mark.sample(1)
@pytest.mark.parametrize("option", [{"again": True}, {"replay": True}, {"set_model": {"m": "x"}}])
def test_what_does_not_go_with_shards_is_refused(tmp_path: Path, option: dict[str, Any]) -> None:
    spec = spec_file(tmp_path, size=4)
    if "replay" in option:
        option = {"replay": _replay(run_spec(spec, tmp_path / "results"))}
    with pytest.raises(UsageError, match="--shard: "):
        run_spec(spec, tmp_path / "results", shard="1/2", **option)


def _replay(result: FinishedRun) -> Any:
    return ReplayOf(result.folder.path)
