"""Runs with a stopping rule: in a sweep, after a kill, in blocks and with votes."""

from __future__ import annotations

import json
import signal
from itertools import groupby
from pathlib import Path
from typing import Any

import pytest

from runner.results.folder import RunFolder
from runner.rollouts.plan import Plan
from runner.runs.finished.reconstruction import Reconstructor, saved_plan
from runner.spec.loader import load_specs
from runner.statistics.confidence_sequences import ConfidenceSequence
from tests.support.processes import (
    interrupt,
    nip_run_here,
    start_nip_run,
    start_nip_run_silently,
    wait_for_exit,
    wait_until,
)
from tests.support.runs import derived_files, journal_records, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

SIZE = 50
SHORT_GAMES: dict[str, Any] = {"fine_tune": None, "protocol": {"use": "nip", "max_message_rounds": 3}}
POINTS = {"name": ["stops", "all", "never"], "until": [{"width": 0.6}, None, {"width": 0.05}]}


def write_sweep(folder: Path, base_url: str) -> list[Path]:
    """Write a sweep of a point that stops, one that plays all games and one without a decision; return its runs."""
    path = spec_file(folder, base_url, size=SIZE, sweep={"zip": POINTS}, rollouts={"concurrency": 48}, **SHORT_GAMES)
    return [folder / "results" / "runs" / Plan(spec).run_id for spec in load_specs(path)]


def read_manifest(run: Path) -> dict[str, Any]:
    manifest: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return manifest


def count_calls(run: Path) -> int:
    return sum(record["kind"] == "call" for record in journal_records(run))


def test_a_point_that_stops_does_not_stop_the_others(tmp_path: Path) -> None:
    with run_chat_server(latency=0.03) as server:
        stops, plays_all, never = write_sweep(tmp_path, server.base_url)
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [read_manifest(run)["status"] for run in (stops, plays_all, never)] == ["done"] * 3
    assert read_manifest(stops)["rollouts"] < SIZE
    assert [read_manifest(run)["rollouts"] for run in (plays_all, never)] == [SIZE, SIZE]
    assert json.loads((never / "metrics.json").read_text())["until"]["decided"] is False
    for other_run in (plays_all, never):  # they were playing when the first point stopped
        started, stopped, end = (
            path.stat().st_mtime_ns
            for path in (other_run / "spec.yaml", stops / "metrics.json", other_run / "metrics.json")
        )
        assert started < stopped < end


def test_ctrl_c_stops_every_point_and_resumed_points_give_the_same_files(tmp_path: Path) -> None:
    with run_chat_server(latency=0.02, held_after=60) as server:
        runs = write_sweep(tmp_path, server.base_url)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests > 60 or process.poll() is not None)
        interrupt(process)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 130, err
        started_runs = [run for run in runs if (run / "manifest.json").is_file()]
        assert len(started_runs) > 1
        # On a busy machine, a point may have finished before the signal arrives.
        statuses = {read_manifest(run)["status"] for run in started_runs}
        assert "interrupted" in statuses
        assert statuses <= {"interrupted", "done"}
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        uninterrupted = nip_run_here("spec.yaml", "-q", "--results", "again", cwd=tmp_path)
        assert uninterrupted.returncode == 0, uninterrupted.stderr
    for run in runs:
        assert derived_files(run) == derived_files(tmp_path / "again" / "runs" / run.name)


def test_a_provider_refusal_stops_every_point(tmp_path: Path) -> None:
    with run_chat_server(latency=0.03, kind="insufficient_quota", after=60) as server:
        runs = write_sweep(tmp_path, server.base_url)
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        assert server.requests <= 60 + 48
        assert server.stats()["kinds"]["answer"] == sum(count_calls(run) for run in runs if run.is_dir())
    assert {read_manifest(run)["status"] for run in runs if run.is_dir()} <= {"failed", "interrupted"}


def test_a_run_killed_between_games_stops_at_the_same_game(tmp_path: Path) -> None:
    """The kill comes after some games are complete in the journal and before the stopping point."""
    with run_chat_server(latency=0.1) as server:
        path = spec_file(tmp_path, server.base_url, size=SIZE, until={"width": 0.6}, **SHORT_GAMES)
        complete_run = run_spec(path, tmp_path / "whole")
        process = start_nip_run_silently("spec.yaml", "-q", "rollouts.concurrency=3", cwd=tmp_path)
        journals = tmp_path / "results" / "runs"
        wait_until(
            lambda: (
                any(file.read_bytes().count(b"\n") > 25 for file in journals.glob("*/journal.jsonl"))
                or process.poll() is not None
            ),
        )
        process.kill()
        assert process.wait() == -signal.SIGKILL
        run = only_run(tmp_path / "results")
        folder = RunFolder(run)
        reconstructor = Reconstructor(folder, saved_plan(folder))
        finished = sum(1 for _ in reconstructor.rollouts())
        reconstructor.close()
        assert 0 < finished < complete_run.metrics["until"]["games"]
        assert not folder.metrics.is_file()
        wait_until(lambda: server.stats()["open"] == 0)
        requests_before, calls_before = server.requests, count_calls(run)
        assert nip_run_here("spec.yaml", "-q", "rollouts.concurrency=7", cwd=tmp_path).returncode == 0
        assert server.requests - requests_before == count_calls(run) - calls_before
    assert derived_files(run) == derived_files(complete_run.path)
    assert complete_run.metrics["until"]["decided"]


def test_a_run_with_blocks_and_votes_stops_at_the_end_of_a_block(tmp_path: Path) -> None:
    """A datapoint counts once all its games are finished, each with the majority of its votes."""
    path = spec_file(
        tmp_path, size=SIZE, until={"width": 0.5}, votes=3, stances="both", seats="swap", fine_tune=None,
        protocol={"use": "mnip", "max_message_rounds": 4}, prompts="prompts/code_validation/mnip",
        models={"other": {"provider": "dummy"}},
        agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "other"}},
    )  # fmt: skip
    run = run_spec(path, tmp_path / "results")
    rows = table(run.path, "rollouts")
    blocks = [list(games) for _, games in groupby(rows, key=lambda row: row["datapoint_id"])]
    assert len(blocks) < SIZE
    sequence, widths = ConfidenceSequence(), []
    for block in blocks:
        assert [(row["stance"], row["swapped"]) for row in block] == [(0, False), (0, True), (1, False), (1, True)]
        assert all(len(json.loads(row["votes"])) == 3 for row in block if row["outcome"] == "decided")
        sequence.add(sum(row["correct"] for row in block) / 4)
        low, high = sequence.interval()
        widths.append(high - low)
    assert [width <= 0.5 for width in widths] == [*[False] * (len(blocks) - 1), True]
    assert (run.metrics["until"]["groups"], run.metrics["until"]["games"]) == (len(blocks), 4 * len(blocks))
