"""A run whose workers and writer are killed gives the files of a single process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.processes import start_nip_run_silently, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.specs import spec_file
from tests.support.worker_processes import find_workers, is_worker_running, read_sorted_answers

pytestmark = pytest.mark.full

ROLLOUTS = 300
CONCURRENCY = 48
KILLS = ["worker"] * 8 + ["writer"] * 2


@pytest.mark.parametrize("seed", [1, 2])
def test_killed_workers_and_writers_lose_and_repeat_no_recorded_answer(tmp_path: Path, seed: int) -> None:
    rng = random.Random(seed)
    kills = rng.sample(KILLS, len(KILLS))
    kill_count = 0
    with run_chat_server(latency=[0.0, 0.12]) as server:
        path = spec_file(tmp_path, server.base_url, size=ROLLOUTS, rollouts={"concurrency": CONCURRENCY})
        single_process_run = run_spec(path, tmp_path / "whole")
        needed = server.requests
        process = start_run(tmp_path)
        for number, kind in enumerate(kills):
            goal = needed + int((number + rng.random()) / (len(kills) + 1) * needed)
            server.change(held_after=goal + needed // (len(kills) + 1))  # so that the run cannot end before the kill
            workers = wait_for_workers(server, goal, process)
            if kind == "writer":
                process.kill()
                process.wait()
                wait_for_end(workers)
                process = start_run(tmp_path)
                kill_count += 1
            else:
                with suppress(ProcessLookupError):
                    os.kill(rng.choice(workers), signal.SIGKILL)
                    kill_count += 1
        server.change(held_after=None)
        assert process.wait() == 0
        requests, max_open = server.requests - needed, server.stats()["max_open"]
    run = only_run(tmp_path / "results")
    records = journal_records(run)
    samples = [tuple(record["sample"]) for record in records if record["kind"] == "call"]
    lost = [record["charged"][2] for record in records if record["kind"] == "lost"]
    assert kill_count == len(KILLS)
    assert len(samples) == len(set(samples)) == needed
    assert requests - needed <= sum(lost)
    assert max(lost, default=0) <= CONCURRENCY
    assert max_open <= CONCURRENCY
    assert derived_files(run) == derived_files(single_process_run.path)
    assert read_sorted_answers(run) == read_sorted_answers(single_process_run.path)


def start_run(folder: Path) -> subprocess.Popen[bytes]:
    return start_nip_run_silently("spec.yaml", "execution.processes=3", "-q", cwd=folder)


def wait_for_workers(server: LoopbackServer, requests: int, writer: subprocess.Popen[bytes]) -> list[int]:
    """Wait until the server has got so many requests and all workers run, and return the workers."""
    workers: list[int] = []

    def are_ready() -> bool:
        assert writer.poll() is None, "the run ended too early"
        workers[:] = find_workers(writer.pid)
        return len(workers) == 3 and server.requests >= requests

    wait_until(are_ready)
    return workers


def wait_for_end(workers: list[int]) -> None:
    wait_until(lambda: not any(map(is_worker_running, workers)))
