"""A worker of which nothing is heard does not hold a run up; one that servers keep waiting does."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from runner.rollouts.stop_switch import StopSwitch
from runner.runs.workers.channel import SocketChannel
from runner.runs.workers.heartbeat import SILENT_CHECKS, SILENT_CHECKS_WHEN_STOPPING, watch_workers
from runner.runs.workers.messages import ALIVE_SECONDS
from runner.runs.workers.writer_state import WorkerSlot, WriterState
from tests.support import ray_cluster
from tests.support.hang_guard import HANG_SECONDS
from tests.support.processes import interrupt, start_nip_run, wait_for_exit, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file
from tests.support.worker_processes import find_workers, is_worker_running, read_sorted_answers

TWO = "execution.processes=2"
EVERY = 0.02
CALLS_AT_ONCE = 8
"""`rollouts.concurrency` of a spec. If the server holds so many calls, both workers are playing."""

_SAYS = """
import socket, sys, time
from runner.runs.workers.frames import Outbox
end = socket.socket(fileno=int(sys.argv[1]))
while True:
    outbox = Outbox()
    outbox.add("alive")
    end.sendall(outbox.take())
    time.sleep(float(sys.argv[2]))
"""


class Worker:
    """A process that says something every now and then, and the link to it."""

    def __init__(self, place: WorkerSlot) -> None:
        self.killed: list[str] = []
        self._place = place
        self._end, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _SAYS, str(theirs.fileno()), str(EVERY)], pass_fds=[theirs.fileno()]
            )

    async def begin(self) -> None:
        heard = asyncio.Event()

        def hear(_: Any) -> None:
            self._place.silent_checks = 0
            heard.set()

        await SocketChannel.open(self._end, hear, lambda: None)
        await asyncio.wait_for(heard.wait(), HANG_SECONDS)

    def kill(self, how: str) -> None:
        self.killed.append(how)
        self._place.worker = None


def watched(what: Callable[[Worker, StopSwitch, _Places], Any], *, leases: int = 2) -> tuple[list[str], list[str]]:
    """What a worker that says something all the time is killed with, and what is noted, while something is done."""

    async def watch() -> tuple[list[str], list[str]]:
        stop, notes = StopSwitch(), cast("list[str]", [])
        failed: list[Exception] = []
        place = WorkerSlot(0, leases=dict.fromkeys(range(leases), cast("Any", None)))
        places = _Places([place])
        worker = Worker(place)
        place.worker = cast("Any", worker)
        await worker.begin()
        held = cast("WriterState", SimpleNamespace(stop=stop, notes=SimpleNamespace(note=notes.append)))
        watching = asyncio.create_task(watch_workers(places, held, failed.append, EVERY))
        try:
            await what(worker, stop, places)
        finally:
            watching.cancel()
            worker.process.kill()
            worker.process.wait()
        assert failed == []
        return worker.killed, notes

    return asyncio.run(watch())


class _Places(list[WorkerSlot]):
    """Places that count how often they were looked at."""

    looks = 0

    def __iter__(self) -> Iterator[WorkerSlot]:
        self.looks += 1
        return super().__iter__()

    async def looked_at(self, times: float) -> None:
        """Wait until they were looked at so often."""
        end = self.looks + times
        while self.looks < end:  # noqa: ASYNC110 - they are looked at as often as this sleeps
            await asyncio.sleep(EVERY)


def _stopped(process: subprocess.Popen[Any]) -> None:
    """Stop a process and wait until it stands still."""
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


async def _hang(worker: Worker, stop: StopSwitch, places: _Places) -> None:
    del stop
    _stopped(worker.process)
    await places.looked_at(1.5 * SILENT_CHECKS)


async def _stop_and_hang(worker: Worker, stop: StopSwitch, places: _Places) -> None:
    stop.stop()
    _stopped(worker.process)
    await places.looked_at((SILENT_CHECKS_WHEN_STOPPING + SILENT_CHECKS) / 2)


async def _stand_still(worker: Worker, stop: StopSwitch, places: _Places) -> None:
    """As a writer that was stopped: it runs, and then does not for a while, and again."""
    del worker, stop, places
    for _ in range(3):
        time.sleep(2 * SILENT_CHECKS * EVERY)  # noqa: ASYNC251 - nothing of this process goes on
        await asyncio.sleep(EVERY / 2)


def test_a_worker_of_which_nothing_is_heard_is_killed_and_that_is_said() -> None:
    (how,), (note,) = watched(_hang)
    assert "sent nothing for" in how
    assert how in note
    assert "other workers play its 2 games again" in note


def test_a_person_who_stops_the_run_waits_less_for_it() -> None:
    (how,), _ = watched(_stop_and_hang)
    assert "sent nothing for" in how


def test_a_worker_without_games_is_left_alone() -> None:
    assert watched(_hang, leases=0) == ([], [])


@pytest.mark.gate
def test_a_writer_that_was_stopped_itself_hears_first_what_waits_for_it() -> None:
    assert watched(_stand_still) == ([], [])


@pytest.mark.full
def test_a_run_goes_on_without_a_worker_that_hangs(tmp_path: Path) -> None:
    """It takes a minute, as it does where it happens."""
    with run_chat_server(latency=[0.0, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        whole = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(held_after=needed)
        process = start_nip_run("spec.yaml", TWO, cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + CALLS_AT_ONCE or process.poll() is not None)
        hung, other = find_workers(process.pid)
        os.kill(hung, signal.SIGSTOP)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 0, err
        assert "a worker process sent nothing for 60 s and was killed" in err
        assert not is_worker_running(hung)
        assert not is_worker_running(other)
        run = only_run(tmp_path / "results")
        lost = [record["charged"][2] for record in journal_records(run) if record["kind"] == "lost"]
        assert server.requests - 2 * needed <= sum(lost) <= 8
    assert "sent nothing for 60 s" in (run / "run.log").read_text()
    assert derived_files(run) == derived_files(whole.path)
    assert read_sorted_answers(run) == read_sorted_answers(whole.path)


@pytest.mark.full
@pytest.mark.usefixtures("ray_namespace")
def test_a_run_on_ray_goes_on_without_an_actor_that_hangs(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.0, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        whole = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(held_after=needed)
        process = start_nip_run("spec.yaml", "execution.engine=ray", "execution.workers=2", cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + CALLS_AT_ONCE or process.poll() is not None)
        hung, _ = ray_cluster.find_actors()
        os.kill(hung, signal.SIGSTOP)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 0, err
        assert re.search(r"sent nothing for 60 s and was killed: \d+ calls? w", err)
        wait_until(lambda: not (ray_cluster.find_actors() or ray_cluster.find_raylets()))
    run = only_run(tmp_path / "results")
    assert derived_files(run) == derived_files(whole.path)
    assert read_sorted_answers(run) == read_sorted_answers(whole.path)


@pytest.mark.full
def test_the_first_ctrl_c_ends_a_run_whose_worker_hangs(tmp_path: Path) -> None:
    with run_chat_server(held_after=0) as server:
        path = spec_file(tmp_path, server.base_url, size=40)
        process = start_nip_run("spec.yaml", TWO, cwd=tmp_path)
        wait_until(lambda: server.requests >= CALLS_AT_ONCE or process.poll() is not None)
        workers = find_workers(process.pid)
        os.kill(workers[0], signal.SIGSTOP)
        interrupt(process)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 130, err
        assert f"sent nothing for {SILENT_CHECKS_WHEN_STOPPING * ALIVE_SECONDS:.0f} s" in err
        assert not any(map(is_worker_running, workers))
        assert "was killed" in err
        result = run_spec(path, tmp_path / "results", TWO)
        assert derived_files(result.path) == derived_files(run_spec(path, tmp_path / "one").path)


@pytest.mark.full
def test_a_call_that_takes_longer_than_a_worker_may_be_silent_is_waited_for(tmp_path: Path) -> None:
    with run_chat_server(latency=(SILENT_CHECKS + 2) * ALIVE_SECONDS) as server:
        spec_file(tmp_path, server.base_url, size=4, protocol={"max_message_rounds": 1}, models={"m": {"timeout": 200}})
        process = start_nip_run("spec.yaml", TWO, cwd=tmp_path)
        wait_until(lambda: server.requests >= 4 or process.poll() is not None)
        asked = server.requests
        code, _, err = wait_for_exit(process)
        assert code == 0, err
        assert "sent nothing" not in err
        assert max(server.stats()["bodies"].values()) == 1
        assert asked == 4
