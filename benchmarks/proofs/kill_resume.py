"""A run of 500 rollouts is killed at 100 random moments, and ends as if it had not been.

    python benchmarks/proofs/kill_resume.py [--times N] [--seed S]

Nine in ten kills come when the server has seen a random number of requests, one in ten at a random time after the
start; then a fifth as many while the tables are derived and the leaderboard is written.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from shared import Claims, calls_of, folder, times

from runner.results.leaderboard.results_folder import Results
from tests.support.processes import started_silent
from tests.support.runs import derived_files, only_run, played
from tests.support.servers.chat_client import serving
from tests.support.servers.client import Loopback
from tests.support.specs import spec_file

CONCURRENCY = 32
ROLLOUTS = 500


def main() -> int:
    args = times(__doc__, 100)
    claims, rng = Claims(), random.Random(args.seed)
    with folder() as here, serving(latency=[0.0, 0.06]) as server:
        path = spec_file(here, server.base_url, size=ROLLOUTS, rollouts={"concurrency": CONCURRENCY})
        whole = played(path, here / "whole")
        needed = server.requests
        wanted = derived_files(whole.folder.path)
        in_flight, slowest = _killed_and_resumed(here, server, needed, args.times, rng)
        run = only_run(here / "results")
        samples = calls_of(run)
        asked = server.requests - needed
        most = max(server.stats()["bodies"].values()) - 1
        lost, doubled = needed - len(set(samples)), len(samples) - len(set(samples))
        kills = len(in_flight)
        print(f"{ROLLOUTS} rollouts, {needed} completions, {kills} kills, each followed by a resume, seed {args.seed}")
        claims(lost == 0, f"records lost: {lost}")
        claims(doubled == 0, f"records doubled: {doubled}")
        claims(
            asked == needed + sum(in_flight),
            f"completions asked again: {asked - needed}; in flight at the kills: {sum(in_flight)}",
        )
        claims(max(in_flight) <= CONCURRENCY, f"most in flight at one kill: {max(in_flight)} of {CONCURRENCY}")
        claims(most <= 1 + kills, f"one completion was asked at most {most} times")
        claims(derived_files(run) == wanted, f"files byte-identical to the uninterrupted run's: {len(wanted)}")
        claims(slowest < 60, f"longest wait for a moment to kill at: {slowest:.1f} s")
        deriving = _killed_while_deriving(here, run, max(args.times // 5, 1), rng)
        claims(derived_files(run) == wanted, f"and after {deriving} kills while the files were derived")
        claims(server.requests - needed == asked, "which asked for nothing")
        claims(_rows(here / "results") == [(run.name, "done", ROLLOUTS)], "the leaderboard has the run, once")
        claims(not list(run.rglob("*.new")), "no half-written file is left")
    return claims.end()


def _killed_and_resumed(
    here: Path, server: Loopback, needed: int, kills: int, rng: random.Random
) -> tuple[list[int], float]:
    """How many calls were in flight at each kill, and the longest wait for a moment."""
    moments = sorted(rng.uniform(0, 1) for _ in range(kills))
    in_flight: list[int] = []
    slowest = 0.0
    base = server.requests
    for moment in moments:
        before, recorded = server.requests, len(_calls(here))
        process = started_silent("spec.yaml", "-q", cwd=here)
        begun = time.monotonic()
        if rng.random() < 0.1:
            with suppress(subprocess.TimeoutExpired):
                process.wait(rng.uniform(0.0, 1.2))
        else:
            # Progress is what is recorded; the first answers come once the process has started.
            goal = int(moment * needed)
            while process.poll() is None and time.monotonic() - begun < 60:
                seen = server.requests
                if seen > before and recorded + seen - before >= goal:
                    break
                time.sleep(rng.uniform(0.001, 0.01))
        process.kill()
        if process.wait() == 0:
            break
        slowest = max(slowest, time.monotonic() - begun)
        time.sleep(0.02)
        in_flight.append(server.requests - before - (len(_calls(here)) - recorded))
    process = started_silent("spec.yaml", "-q", cwd=here)
    assert process.wait(300) == 0, "the last resume failed"
    assert server.requests >= base + needed
    return in_flight, slowest


def _calls(here: Path) -> list[tuple[object, ...]]:
    runs = here / "results" / "runs"
    found = [path for path in runs.iterdir() if path.is_dir()] if runs.is_dir() else []
    if not found:
        return []
    data = found[0] / "journal.jsonl"
    if not data.is_file():
        return []
    # The last line may be torn: only what ends in a line feed counts.
    return calls_of(found[0])


def _killed_while_deriving(here: Path, run: Path, kills: int, rng: random.Random) -> int:
    """Everything is in the journal; kill while the rest is made from it."""
    done = 0
    for _ in range(kills):
        manifest = json.loads((run / "manifest.json").read_text())
        (run / "manifest.json").write_text(json.dumps({**manifest, "status": "running"}))
        process = started_silent("spec.yaml", "-q", cwd=here)
        try:
            process.wait(rng.uniform(0.4, 2.5))
        except subprocess.TimeoutExpired:
            process.kill()
            done += 1
        process.wait()
    assert started_silent("spec.yaml", "-q", cwd=here).wait(300) == 0
    return done


def _rows(results: Path) -> list[tuple[object, ...]]:
    return Results(results).board.query("SELECT run_id, status, rollouts FROM runs")[1]


if __name__ == "__main__":
    sys.exit(main())
