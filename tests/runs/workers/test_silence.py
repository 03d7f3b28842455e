"""Silent workers are replaced, but workers that wait for a slow server are not."""

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

TWO_PROCESSES = "execution.processes=2"
CHECK_SECONDS = 0.02
CONCURRENT_CALLS = 8
"""Default of `rollouts.concurrency`. With that many calls in flight, both workers are playing."""

_HEARTBEAT_SCRIPT = """
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
    """A process that sends a message at intervals, and the connection to it."""

    def __init__(self, slot: WorkerSlot) -> None:
        self.killed: list[str] = []
        self._slot = slot
        self._end, remote_end = socket.socketpair()
        with remote_end:
            self.process = subprocess.Popen(
                [sys.executable, "-c", _HEARTBEAT_SCRIPT, str(remote_end.fileno()), str(CHECK_SECONDS)],
                pass_fds=[remote_end.fileno()],
            )

    async def wait_for_first_message(self) -> None:
        first_message = asyncio.Event()

        def receive(_: Any) -> None:
            self._slot.silent_checks = 0
            first_message.set()

        await SocketChannel.open(self._end, receive, lambda: None)
        await asyncio.wait_for(first_message.wait(), HANG_SECONDS)

    def kill(self, how: str) -> None:
        self.killed.append(how)
        self._slot.worker = None


def watch_worker(
    action: Callable[[Worker, StopSwitch, _CountingSlots], Any], *, leases: int = 2
) -> tuple[list[str], list[str]]:
    """Return the reasons for killing a worker and the notes while `action` runs."""

    async def watch() -> tuple[list[str], list[str]]:
        stop, notes = StopSwitch(), cast("list[str]", [])
        failed: list[Exception] = []
        slot = WorkerSlot(0, leases=dict.fromkeys(range(leases), cast("Any", None)))
        slots = _CountingSlots([slot])
        worker = Worker(slot)
        slot.worker = cast("Any", worker)
        await worker.wait_for_first_message()
        state = cast("WriterState", SimpleNamespace(stop=stop, notes=SimpleNamespace(note=notes.append)))
        watching = asyncio.create_task(watch_workers(slots, state, failed.append, CHECK_SECONDS))
        try:
            await action(worker, stop, slots)
        finally:
            watching.cancel()
            worker.process.kill()
            worker.process.wait()
        assert failed == []
        return worker.killed, notes

    return asyncio.run(watch())


class _CountingSlots(list[WorkerSlot]):
    """Slots that count how often they are iterated over."""

    iterations = 0

    def __iter__(self) -> Iterator[WorkerSlot]:
        self.iterations += 1
        return super().__iter__()

    async def wait_for_iterations(self, times: float) -> None:
        """Wait for so many more iterations."""
        end = self.iterations + times
        while self.iterations < end:  # noqa: ASYNC110 - each sleep gives about one iteration
            await asyncio.sleep(CHECK_SECONDS)


def _stop_process(process: subprocess.Popen[Any]) -> None:
    """Stop a process and wait until the system reports it as stopped."""
    process.send_signal(signal.SIGSTOP)
    wait_until(lambda: Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T")


async def _hang(worker: Worker, stop: StopSwitch, slots: _CountingSlots) -> None:
    del stop
    _stop_process(worker.process)
    await slots.wait_for_iterations(1.5 * SILENT_CHECKS)


async def _stop_and_hang(worker: Worker, stop: StopSwitch, slots: _CountingSlots) -> None:
    stop.stop()
    _stop_process(worker.process)
    await slots.wait_for_iterations((SILENT_CHECKS_WHEN_STOPPING + SILENT_CHECKS) / 2)


async def _block_repeatedly(worker: Worker, stop: StopSwitch, slots: _CountingSlots) -> None:
    """Block this process three times, like a writer that is stopped and continued."""
    del worker, stop, slots
    for _ in range(3):
        time.sleep(2 * SILENT_CHECKS * CHECK_SECONDS)  # noqa: ASYNC251 - the whole process must block
        await asyncio.sleep(CHECK_SECONDS / 2)


def test_a_silent_worker_is_killed_and_noted() -> None:
    (reason,), (note,) = watch_worker(_hang)
    assert "sent nothing for" in reason
    assert reason in note
    assert "other workers play its 2 games again" in note


def test_a_silent_worker_is_killed_sooner_if_the_run_is_stopping() -> None:
    (reason,), _ = watch_worker(_stop_and_hang)
    assert "sent nothing for" in reason


def test_a_worker_without_games_is_left_alone() -> None:
    assert watch_worker(_hang, leases=0) == ([], [])


@pytest.mark.gate
def test_a_writer_that_was_blocked_reads_waiting_messages_before_it_kills_a_worker() -> None:
    assert watch_worker(_block_repeatedly) == ([], [])


@pytest.mark.full
def test_a_run_continues_without_a_worker_that_hangs(tmp_path: Path) -> None:
    """The test uses the real time limit and takes a minute."""
    with run_chat_server(latency=[0.0, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        single_process_run = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(held_after=needed)
        process = start_nip_run("spec.yaml", TWO_PROCESSES, cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + CONCURRENT_CALLS or process.poll() is not None)
        hung_worker, other_worker = find_workers(process.pid)
        os.kill(hung_worker, signal.SIGSTOP)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 0, err
        assert "a worker process sent nothing for 60 s and was killed" in err
        assert not is_worker_running(hung_worker)
        assert not is_worker_running(other_worker)
        run = only_run(tmp_path / "results")
        lost = [record["charged"][2] for record in journal_records(run) if record["kind"] == "lost"]
        assert server.requests - 2 * needed <= sum(lost) <= 8
    assert "sent nothing for 60 s" in (run / "run.log").read_text()
    assert derived_files(run) == derived_files(single_process_run.path)
    assert read_sorted_answers(run) == read_sorted_answers(single_process_run.path)


@pytest.mark.full
@pytest.mark.usefixtures("ray_namespace")
def test_a_run_on_ray_continues_without_an_actor_that_hangs(tmp_path: Path) -> None:
    with run_chat_server(latency=[0.0, 0.05]) as server:
        path = spec_file(tmp_path, server.base_url, size=20)
        single_process_run = run_spec(path, tmp_path / "one")
        needed = server.requests
        server.change(held_after=needed)
        process = start_nip_run("spec.yaml", "execution.engine=ray", "execution.workers=2", cwd=tmp_path)
        wait_until(lambda: server.requests >= needed + CONCURRENT_CALLS or process.poll() is not None)
        hung, _ = ray_cluster.find_actors()
        os.kill(hung, signal.SIGSTOP)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 0, err
        assert re.search(r"sent nothing for 60 s and was killed: \d+ calls? w", err)
        wait_until(lambda: not (ray_cluster.find_actors() or ray_cluster.find_raylets()))
    run = only_run(tmp_path / "results")
    assert derived_files(run) == derived_files(single_process_run.path)
    assert read_sorted_answers(run) == read_sorted_answers(single_process_run.path)


@pytest.mark.full
def test_the_first_ctrl_c_ends_a_run_whose_worker_hangs(tmp_path: Path) -> None:
    with run_chat_server(held_after=0) as server:
        path = spec_file(tmp_path, server.base_url, size=40)
        process = start_nip_run("spec.yaml", TWO_PROCESSES, cwd=tmp_path)
        wait_until(lambda: server.requests >= CONCURRENT_CALLS or process.poll() is not None)
        workers = find_workers(process.pid)
        os.kill(workers[0], signal.SIGSTOP)
        interrupt(process)
        server.change(held_after=None)
        code, _, err = wait_for_exit(process)
        assert code == 130, err
        assert f"sent nothing for {SILENT_CHECKS_WHEN_STOPPING * ALIVE_SECONDS:.0f} s" in err
        assert not any(map(is_worker_running, workers))
        assert "was killed" in err
        result = run_spec(path, tmp_path / "results", TWO_PROCESSES)
        assert derived_files(result.path) == derived_files(run_spec(path, tmp_path / "one").path)


@pytest.mark.full
def test_a_call_longer_than_the_silence_limit_does_not_end_its_worker(tmp_path: Path) -> None:
    with run_chat_server(latency=(SILENT_CHECKS + 2) * ALIVE_SECONDS) as server:
        spec_file(tmp_path, server.base_url, size=4, protocol={"max_message_rounds": 1}, models={"m": {"timeout": 200}})
        process = start_nip_run("spec.yaml", TWO_PROCESSES, cwd=tmp_path)
        wait_until(lambda: server.requests >= 4 or process.poll() is not None)
        request_count = server.requests
        code, _, err = wait_for_exit(process)
        assert code == 0, err
        assert "sent nothing" not in err
        assert max(server.stats()["bodies"].values()) == 1
        assert request_count == 4
