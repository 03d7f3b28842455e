"""Runs that are killed at random moments, with counts of the requests at their server."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from tests.support.processes import start_nip_run_silently, wait_or_kill, wait_until
from tests.support.runs import journal_records
from tests.support.servers.client import LoopbackServer


def recorded_calls(results: Path) -> list[tuple[str, str]]:
    """Return the run and the sample of each recorded call of all runs."""
    return [
        (run.name, str(record["sample"]))
        for run in sorted((results / "runs").glob("*"))
        if (run / "journal.jsonl").is_file()
        for record in journal_records(run)
        if record["kind"] == "call"
    ]


def kill_at_random_moments(
    folder: Path,
    server: LoopbackServer,
    needed: int,
    kills: int,
    *,
    max_in_flight: int,
    command: Sequence[str] = ("spec.yaml", "-q"),
    results: Path = Path("results"),
) -> None:
    """Run a command, kill it (SIGKILL) repeatedly, then let it end; check that no answer is lost or repeated.

    `needed` is the number of calls of the whole run. A call in flight at a kill may be repeated, because its answer is
    not recorded. `results` is the results folder, relative to `folder`.
    """
    rng, results = random.Random(needed), folder / results
    for call_goal in sorted(rng.uniform(0, needed) for _ in range(kills)):
        before, start = recorded_calls(results), server.requests
        process = start_nip_run_silently(*command, cwd=folder)
        request_goal = max(1, call_goal - len(before))
        wait_until(lambda: process.poll() is not None or server.requests - start >= request_goal)  # noqa: B023
        process.kill()
        process.wait()
        wait_until(lambda: server.stats()["open"] == 0)
        recorded = recorded_calls(results)
        assert set(before) <= set(recorded), "an answer is lost"
        unrecorded = server.requests - start - (len(recorded) - len(before))
        assert 0 <= unrecorded <= max_in_flight, f"{unrecorded} answers may be requested again"
    before, start = recorded_calls(results), server.requests
    assert wait_or_kill(start_nip_run_silently(*command, cwd=folder)) == 0
    recorded = recorded_calls(results)
    assert server.requests - start == len(recorded) - len(before)
    assert len(recorded) == len(set(recorded)) == needed
