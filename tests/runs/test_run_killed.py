"""A run of 500 rollouts that is killed at 100 random moments ends like an undisturbed one."""

from __future__ import annotations

import json
import random
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from runner.results.leaderboard.results_folder import Results
from tests.support.processes import start_nip_run_silently, wait_or_kill, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file

pytestmark = pytest.mark.full

KILLS = 100
ROLLOUTS, CONCURRENCY = 500, 32


def recorded_calls(folder: Path) -> list[tuple[Any, ...]]:
    """Return the samples of the calls in the run's journal, or none before there is one."""
    journals = list(folder.glob("results/runs/*/journal.jsonl"))
    records = journal_records(journals[0].parent) if journals else []
    return [tuple(record["sample"]) for record in records if record["kind"] == "call"]


def play_and_kill(folder: Path, server: LoopbackServer, goal: int, rng: random.Random) -> bool:
    """Kill the run once so many calls are recorded or sent, or at a random time; return False if it had ended."""
    requests, recorded = server.requests, len(recorded_calls(folder))
    process = start_nip_run_silently("spec.yaml", "-q", cwd=folder)
    if rng.random() < 0.1:
        with suppress(subprocess.TimeoutExpired):
            process.wait(rng.uniform(0.0, 1.2))
    else:
        wait_until(lambda: process.poll() is not None or server.requests - requests >= max(1, goal - recorded))
    process.kill()
    return process.wait() != 0


def kill_while_deriving(folder: Path, run: Path, rng: random.Random) -> None:
    """Kill the run while it makes its tables and the leaderboard from a complete journal."""
    manifest = json.loads((run / "manifest.json").read_text())
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
    process = start_nip_run_silently("spec.yaml", "-q", cwd=folder)
    with suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0.4, 2.5))
    process.kill()
    process.wait()


def test_a_run_killed_at_a_hundred_moments_ends_like_an_undisturbed_run(tmp_path: Path) -> None:
    rng = random.Random(1)
    with run_chat_server(latency=[0.0, 0.06]) as server:
        path = spec_file(tmp_path, server.base_url, size=ROLLOUTS, rollouts={"concurrency": CONCURRENCY})
        expected = derived_files(run_spec(path, tmp_path / "whole").folder.path)
        needed = server.requests
        goals = sorted(int(rng.uniform(0, needed)) for _ in range(KILLS))
        kills = 0
        for goal in goals:
            if not play_and_kill(tmp_path, server, goal, rng):
                break
            kills += 1
        assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)) == 0
        run, requests = only_run(tmp_path / "results"), server.requests - needed
        samples = recorded_calls(tmp_path)
        assert len(samples) == len(set(samples)) == needed
        assert kills > KILLS // 2
        assert needed <= requests <= needed + CONCURRENCY * kills  # calls in flight at a kill are repeated
        assert max(server.stats()["bodies"].values()) <= 2 + kills
        assert derived_files(run) == expected
        for _ in range(KILLS // 5):
            kill_while_deriving(tmp_path, run, rng)
        assert wait_or_kill(start_nip_run_silently("spec.yaml", "-q", cwd=tmp_path)) == 0
        assert server.requests - needed == requests
    assert derived_files(run) == expected
    rows = Results(tmp_path / "results").board.query("SELECT run_id, status, rollouts FROM runs")[1]
    assert rows == [(run.name, "done", ROLLOUTS)]
    assert not list(run.rglob("*.new"))
