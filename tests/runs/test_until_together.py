"""Runs that stop when they are decided: beside others in a sweep, killed half-way, in blocks and with votes."""

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
SHORT: dict[str, Any] = {"fine_tune": None, "protocol": {"use": "nip", "max_message_rounds": 3}}
POINTS = {"name": ["stops", "all", "never"], "until": [{"width": 0.6}, None, {"width": 0.05}]}


def swept(folder: Path, base_url: str) -> list[Path]:
    """A sweep with a point that stops, one that plays all, and one that is never decided; their folders."""
    path = spec_file(folder, base_url, size=SIZE, sweep={"zip": POINTS}, rollouts={"concurrency": 48}, **SHORT)
    return [folder / "results" / "runs" / Plan(spec).run_id for spec in load_specs(path)]


def manifest(run: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run / "manifest.json").read_text())
    return found


def calls(run: Path) -> int:
    return sum(record["kind"] == "call" for record in journal_records(run))


def test_a_point_that_stops_leaves_the_others_playing(tmp_path: Path) -> None:
    with run_chat_server(latency=0.03) as server:
        stops, whole, never = swept(tmp_path, server.base_url)
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert [manifest(run)["status"] for run in (stops, whole, never)] == ["done"] * 3
    assert manifest(stops)["rollouts"] < SIZE
    assert [manifest(run)["rollouts"] for run in (whole, never)] == [SIZE, SIZE]
    assert json.loads((never / "metrics.json").read_text())["until"]["decided"] is False
    for other in (whole, never):  # they were at it when the first one stopped
        begun, stopped, end = (
            path.stat().st_mtime_ns for path in (other / "spec.yaml", stops / "metrics.json", other / "metrics.json")
        )
        assert begun < stopped < end


def test_ctrl_c_stops_every_point_and_they_go_on_to_the_same(tmp_path: Path) -> None:
    with run_chat_server(latency=0.02, held_after=60) as server:
        runs = swept(tmp_path, server.base_url)
        process = start_nip_run("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests > 60 or process.poll() is not None)
        interrupt(process)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 130, err
        begun = [run for run in runs if (run / "manifest.json").is_file()]
        assert len(begun) > 1
        # On a busy machine, a point may have finished before the signal arrives.
        statuses = {manifest(run)["status"] for run in begun}
        assert "interrupted" in statuses
        assert statuses <= {"interrupted", "done"}
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        whole = nip_run_here("spec.yaml", "-q", "--results", "again", cwd=tmp_path)
        assert whole.returncode == 0, whole.stderr
    for run in runs:
        assert derived_files(run) == derived_files(tmp_path / "again" / "runs" / run.name)


def test_a_refusal_stops_every_point(tmp_path: Path) -> None:
    with run_chat_server(latency=0.03, kind="insufficient_quota", after=60) as server:
        runs = swept(tmp_path, server.base_url)
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        assert done.returncode == 4, done.stderr
        assert server.requests <= 60 + 48
        assert server.stats()["kinds"]["answer"] == sum(calls(run) for run in runs if run.is_dir())
    assert {manifest(run)["status"] for run in runs if run.is_dir()} <= {"failed", "interrupted"}


def test_a_run_killed_between_its_games_decides_the_same(tmp_path: Path) -> None:
    """The kill comes when there are whole games in the journal, and before it is decided."""
    with run_chat_server(latency=0.1) as server:
        path = spec_file(tmp_path, server.base_url, size=SIZE, until={"width": 0.6}, **SHORT)
        whole = run_spec(path, tmp_path / "whole")
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
        assert 0 < finished < whole.metrics["until"]["games"]
        assert not folder.metrics.is_file()
        wait_until(lambda: server.stats()["open"] == 0)
        asked, kept = server.requests, calls(run)
        assert nip_run_here("spec.yaml", "-q", "rollouts.concurrency=7", cwd=tmp_path).returncode == 0
        assert server.requests - asked == calls(run) - kept
    assert derived_files(run) == derived_files(whole.path)
    assert whole.metrics["until"]["decided"]


def test_blocks_with_votes_stop_at_the_end_of_one(tmp_path: Path) -> None:
    """Every play of a datapoint is in before it counts, each with the majority of its votes."""
    path = spec_file(
        tmp_path, size=SIZE, until={"width": 0.5}, votes=3, stances="both", seats="swap", fine_tune=None,
        protocol={"use": "mnip", "max_message_rounds": 4}, prompts="prompts/code_validation/mnip",
        models={"other": {"provider": "dummy"}},
        agents={"prover": None, "prover0": {"model": "m"}, "prover1": {"model": "other"}},
    )  # fmt: skip
    run = run_spec(path, tmp_path / "results")
    rows = table(run.path, "rollouts")
    blocks = [list(plays) for _, plays in groupby(rows, key=lambda row: row["datapoint_id"])]
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
