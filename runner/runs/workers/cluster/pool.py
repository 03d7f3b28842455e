"""Workers on the nodes of a Ray cluster. Each worker is an actor: a process that Ray starts on a node with a free CPU.

If the spec sets `execution.engine: ray`, the scheduler uses `RayPool` instead of `LocalPool`. A worker plays games of
the run. The writer, which is the main process, exchanges messages with a worker by calls of the actor's method
`exchange`. A message is sent in one or more pieces of bytes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from runner.base.errors import ANSWERS_ARE_SAVED, RunError
from runner.runs.workers import messages
from runner.runs.workers.channel import ReceiveBatch
from runner.runs.workers.cluster.actor_channel import PIECE_BYTES
from runner.runs.workers.cluster.connection import connected, describe_capacity, ray_package
from runner.runs.workers.cluster.errors import NodeError, describe_death, find_node_problem, with_node
from runner.runs.workers.frames import FrameReader, Outbox
from runner.runs.workers.pool import END_SECONDS
from runner.runs.workers.remote_errors import RemoteError
from runner.spec.experiment import Execution

PIECES_PER_CALL = 64
"""The maximum number of pieces in one call. In total they are below Ray's `task_rpc_inlined_bytes_limit` (10 MiB)."""

MAX_CONCURRENT_CALLS = 2
"""The maximum number of concurrent calls to an actor: one that waits for messages, and one that sends messages."""

NOTICE_SECONDS = 20.0
"""The time between two messages to the user about workers that wait for a free CPU."""

PATIENCE_SECONDS = 600.0
"""The run ends if no worker gets a CPU within this time."""

RETRY_SECONDS = 2.0
"""The wait before a new actor replaces an actor whose node died. Ray may take this long to notice the death."""

OTHER_NODE_SECONDS = 60.0
"""The wait before a new actor replaces one whose node cannot run a worker: it may have another version of nip-run."""


@asynccontextmanager
async def ray_pool(execution: Execution) -> AsyncIterator[RayPool]:
    """Yield the pool of workers in the cluster that `execution` names.

    Raises:
        UsageError: Ray is not installed on this machine.
        RunError: the cluster cannot be reached.
    """
    async with connected(execution):
        yield RayPool(execution.count)


class RayPool:
    """Starts workers as actors."""

    def __init__(
        self, worker_count: int, *, notice_seconds: float = NOTICE_SECONDS, patience_seconds: float = PATIENCE_SECONDS
    ) -> None:
        self.ray: Any = ray_package()
        self.worker_count, self.notice_seconds, self.patience_seconds = worker_count, notice_seconds, patience_seconds
        self.placed_workers: set[RayWorker] = set()
        """The workers whose actor runs on a node."""
        self.has_had_ready_worker = False
        """Whether any worker has been ready. If so, a node that cannot run a worker does not end the run."""
        # Ray must not restart actors: the scheduler first counts the model calls that a dead worker left unfinished,
        # because they may cost money, and then starts a new worker.
        self._class = self.ray.remote(worker_class()).options(
            num_cpus=1, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0, max_concurrency=1000
        )

    async def start(self, receive: ReceiveBatch, on_exit: Callable[[str], None]) -> RayWorker:
        """Start a worker. It becomes ready once the cluster has a free CPU."""
        return RayWorker(self, receive, on_exit)

    def create_actor(self) -> Any:
        """Return a handle of a new actor, which Ray places when a CPU is free."""
        return self._class.remote()

    def describe_waiting(self) -> str:
        """Describe how many workers wait for a free CPU."""
        capacity = describe_capacity(self.ray)
        if not self.placed_workers:
            return f"no worker has a CPU in the Ray cluster yet: a worker needs 1 CPU, and the cluster has {capacity}"
        waiting = self.worker_count - len(self.placed_workers)
        return (
            f"{waiting} of {self.worker_count} workers wait for a CPU in the Ray cluster, which has {capacity}; the "
            "other workers play"
        )


class RayWorker:
    """An actor with a worker, as the writer sees it: sends messages to the worker and passes on messages from it."""

    def __init__(self, pool: RayPool, receive: ReceiveBatch, on_exit: Callable[[str], None]) -> None:
        self._pool, self._handle_messages = pool, receive
        self._on_exit: Callable[[str], None] | None = on_exit
        self._loop = asyncio.get_running_loop()
        self._actor: Any = None
        self._start_message: Any = None
        self._location = ""
        self._is_flush_scheduled = False
        self._reset()
        self._receive_task = asyncio.create_task(self._receive_until_end())

    def _reset(self) -> None:
        """Reset the channel for a new actor."""
        self._reader, self._outbox = FrameReader(), Outbox()
        self._calls: deque[Any] = deque()
        self._next_call_number = 0
        self._is_placed = False

    def send(self, message: Any) -> None:
        if self._start_message is None:
            self._start_message = message
        self._outbox.add(message)
        if self._is_placed and not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        if self._is_placed:
            self._start_calls()

    def _start_calls(self) -> None:
        """Make sure that the actor has an unfinished call, and start another one if there are messages to send."""
        while len(self._calls) < (MAX_CONCURRENT_CALLS if self._outbox else 1):
            pieces: list[bytes] = []
            while self._outbox and len(pieces) < PIECES_PER_CALL:
                pieces.append(bytes(self._outbox.take(PIECE_BYTES)))
            self._calls.append(self._actor.exchange.remote(self._next_call_number, *pieces))
            self._next_call_number += 1

    async def _receive_until_end(self) -> None:
        """Create an actor, and receive the worker's messages until the worker ends.

        Create another actor if Ray failed before the actor ran, or if its node cannot run a worker but other nodes can.
        """
        ray_error = self._pool.ray.exceptions.RayError
        try:
            while True:
                try:
                    await self._wait_for_node()
                    await self._receive_all()
                except NodeError as error:
                    if not self._pool.has_had_ready_worker:
                        raise
                    self._note(f"{error}; the other workers continue")
                    await self._retry(OTHER_NODE_SECONDS)
                except ray_error:
                    if self._is_placed:
                        raise
                    await self._retry(RETRY_SECONDS)
        except NodeError as error:
            self._handle_messages([messages.CannotStart(error.failure)])
        except ray_error as error:
            self._exit(describe_death(error, self._location))
        except Exception as error:  # noqa: BLE001 - any error must end the run
            self._handle_messages([messages.CannotStart(RemoteError.from_exception(error))])
        finally:
            self._pool.placed_workers.discard(self)

    async def _wait_for_node(self) -> None:
        """Create an actor and wait until it runs on a node.

        Raises:
            NodeError: the node cannot run a worker.
            RunError: no worker has got a CPU within `PATIENCE_SECONDS`.
        """
        self._actor = self._pool.create_actor()
        describe_task = asyncio.ensure_future(_await_result(self._actor.describe.remote()))
        try:
            start_time = self._loop.time()
            while not (await asyncio.wait([describe_task], timeout=self._pool.notice_seconds))[0]:
                self._note_waiting(self._loop.time() - start_time)
            info = describe_task.result()
        finally:
            describe_task.cancel()
        self._location = f"on node {info['node']} (pid {info['pid']})"
        if (problem := find_node_problem(info)) is not None:
            raise NodeError(RemoteError.from_exception(RunError(problem)))
        self._is_placed = True
        self._pool.placed_workers.add(self)

    def _note_waiting(self, seconds: float) -> None:
        line = self._pool.describe_waiting()
        if not self._pool.placed_workers and seconds >= self._pool.patience_seconds:
            raise RunError(
                f"{line}, after {seconds:.0f} s. Add nodes, free some CPUs, or lower execution.workers, and run the "
                f"same command again. {ANSWERS_ARE_SAVED}"
            )
        self._note(line)

    def _note(self, line: str) -> None:
        # The run keeps one note per subject. The part before ":" is the same each time, because it has no numbers.
        subject = line.partition(":")[0]
        self._handle_messages([messages.NoteAdded(subject, line)])

    async def _retry(self, seconds: float) -> None:
        """Kill the actor, and wait before the caller creates another one."""
        self._kill_actor()
        self._pool.placed_workers.discard(self)
        self._reset()
        self._outbox.add(self._start_message)
        await asyncio.sleep(seconds)

    async def _receive_all(self) -> None:
        """Receive messages until the actor is gone. Then its last call raises an error of Ray.

        Raises:
            NodeError: the worker cannot start.
        """
        while True:
            self._start_calls()
            data = await self._calls[0]
            self._calls.popleft()
            for batch in self._reader.feed(data):
                self._check_start(batch)
                self._handle_messages(batch)

    def _check_start(self, batch: Sequence[Any]) -> None:
        for message in batch:
            if isinstance(message, messages.CannotStart):
                raise NodeError(with_node(message.failure, self._location))
            if isinstance(message, messages.WorkerReady):
                self._pool.has_had_ready_worker = True

    def _exit(self, exit_reason: str) -> None:
        """Report that the actor is gone, and kill it in case it is only unreachable."""
        self._kill_actor()
        self._is_placed = False
        on_exit, self._on_exit = self._on_exit, None
        if on_exit is not None:
            on_exit(exit_reason)

    def kill(self, exit_reason: str) -> None:
        self._receive_task.cancel()
        self._exit(f"{self._location} {exit_reason}")

    def _kill_actor(self) -> None:
        if self._actor is not None:
            with suppress(Exception):  # the actor or the whole cluster may be gone
                self._pool.ray.kill(self._actor, no_restart=True)

    async def end(self, *, immediately: bool) -> None:
        self._on_exit = None
        if not immediately and self._is_placed:
            with suppress(Exception):  # the worker has reported everything, so errors do not matter
                await asyncio.wait_for(_await_result(self._actor.wait_until_finished.remote()), END_SECONDS)
        self._is_placed = False
        self._receive_task.cancel()
        await asyncio.wait([self._receive_task])
        self._kill_actor()


async def _await_result(reference: Any) -> Any:
    return await reference


def worker_class() -> type[Any]:
    """Return the actor class. It is local to this function, because Ray would import a global class on the node."""

    class NipRunWorker:
        def __init__(self) -> None:
            self._channel: Any = None

        async def describe(self) -> dict[str, object]:
            """Return the node, the process id and the version of nip-run there, or the error if nip-run is missing."""
            import os

            import ray

            info = {"node": ray.util.get_node_ip_address(), "pid": os.getpid(), "version": None, "missing": ""}
            try:
                from runner.version import __version__
            except ImportError as error:
                return {**info, "missing": str(error)}
            return {**info, "version": __version__}

        async def exchange(self, number: int, *pieces: bytes) -> bytes:
            if self._channel is None:
                import gc

                from runner.runs.workers.cluster.actor_channel import ActorChannel

                gc.set_threshold(50_000, 20, 50)  # the same values as in `relaxed_gc`
                self._channel = ActorChannel()
            answer: bytes = await self._channel.exchange(number, pieces)
            return answer

        async def wait_until_finished(self) -> None:
            if self._channel is not None:
                await self._channel.worker.finished.wait()

    return NipRunWorker
