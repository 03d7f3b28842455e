"""A run by worker processes: workers are killed 20 times and the writer 5 times, and it ends as one process would.

    python benchmarks/proofs/processes.py [--times N] [--seed S]

N workers are killed; the writer a quarter as often, and resumed. The server counts what it is asked. Linux: the
processes are found in /proc.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from shared import Claims, calls_of, folder, times

from tests.support.processes import started_silent
from tests.support.runs import derived_files, journal_records, only_run, played
from tests.support.servers.chat_client import serving
from tests.support.servers.client import Loopback
from tests.support.specs import spec_file
from tests.support.workers import facts_in_journal, is_running, workers_of

ROLLOUTS = 600
CONCURRENCY = 48
PROCESSES = 3


def main() -> int:
    args = times(__doc__, 20)
    claims, rng = Claims(), random.Random(args.seed)
    with folder() as here, serving(latency=[0.0, 0.12]) as server:
        path = spec_file(here, server.base_url, size=ROLLOUTS, rollouts={"concurrency": CONCURRENCY})
        whole = played(path, here / "whole")
        needed = server.requests
        kills = _Kills(here, server, needed, rng)
        kills.play(args.times, max(args.times // 4, 1))
        run = only_run(here / "results")
        asked, samples = server.requests - needed, calls_of(run)
        lost = [record["charged"][2] for record in journal_records(run) if record["kind"] == "lost"]
        print(
            f"{ROLLOUTS} rollouts, {needed} completions, {PROCESSES} workers; {kills.workers} kills of workers, "
            f"{kills.writers} of the writer, seed {args.seed}"
        )
        claims(kills.workers == args.times, f"workers killed: {kills.workers}")
        claims(kills.writers == max(args.times // 4, 1), f"writers killed: {kills.writers}")
        claims(kills.left == 0, f"workers that outlived their writer: {kills.left}")
        claims(len(set(samples)) == needed, f"records lost: {needed - len(set(samples))}")
        claims(len(samples) == len(set(samples)), f"records doubled: {len(samples) - len(set(samples))}")
        claims(asked - needed <= sum(lost), f"asked again: {asked - needed}; in flight at the kills: {sum(lost)}")
        claims(max(lost, default=0) <= CONCURRENCY, f"most in flight at one kill: {max(lost, default=0)}")
        wanted = derived_files(whole.folder.path)
        claims(derived_files(run) == wanted, f"files byte-identical to those of one process: {len(wanted)}")
        claims(
            facts_in_journal(run) == facts_in_journal(whole.folder.path),
            "the journal's answers are those of one process, as a set",
        )
        most = server.stats()["max_open"]
        claims(most <= CONCURRENCY, f"most calls at once, at the server: {most} of {CONCURRENCY}")
    return claims.end()


class _Kills:
    """Plays a run to its end, with kills at random moments of its progress."""

    def __init__(self, here: Path, server: Loopback, needed: int, rng: random.Random) -> None:
        self._here, self._server, self._needed, self._rng = here, server, needed, rng
        self._base = server.requests
        self.workers = self.writers = self.left = 0

    def play(self, workers: int, writers: int) -> None:
        of_writer = [False] * workers + [True] * writers
        self._rng.shuffle(of_writer)
        process = self._started()
        for number, is_writer in enumerate(of_writer):
            goal = self._base + int((number + self._rng.random()) / (len(of_writer) + 1) * self._needed)
            if not self._until(process, goal):
                break
            if is_writer:
                self._kill_writer(process)
                process = self._started()
            else:
                self._kill_worker(process)
        assert process.wait(300) == 0, "the run failed"

    def _started(self) -> subprocess.Popen[bytes]:
        return started_silent("spec.yaml", f"execution.processes={PROCESSES}", "-q", cwd=self._here)

    def _until(self, process: subprocess.Popen[bytes], goal: int) -> bool:
        """Wait until the server was asked so often, and there is a worker to kill; false where the run has ended."""
        late = time.monotonic() + 120
        while self._server.requests < goal or not workers_of(process.pid):
            assert time.monotonic() < late, "no progress"
            if process.poll() is not None:
                return False
            time.sleep(self._rng.uniform(0.001, 0.02))
        return True

    def _kill_worker(self, process: subprocess.Popen[bytes]) -> None:
        with suppress(ProcessLookupError, IndexError):
            os.kill(self._rng.choice(workers_of(process.pid)), signal.SIGKILL)
            self.workers += 1

    def _kill_writer(self, process: subprocess.Popen[bytes]) -> None:
        workers = workers_of(process.pid)
        process.kill()
        process.wait()
        self.writers += 1
        late = time.monotonic() + 5
        while time.monotonic() < late and any(map(is_running, workers)):
            time.sleep(0.01)
        self.left += sum(map(is_running, workers))


if __name__ == "__main__":
    sys.exit(main())
