"""Workers on the nodes of a Ray cluster, each an actor: placed where there is room, and let go of with the run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from runner.base.errors import RunError
from runner.runs.workers import messages
from runner.runs.workers.cluster.actor import worker_class
from runner.runs.workers.cluster.connection import connected, ray_package, room_in_words
from runner.runs.workers.cluster.errors import CannotWorkError, how_it_ended, located, wrong_node
from runner.runs.workers.cluster.frames import PIECES_AT_ONCE, FrameReader, Outgoing
from runner.runs.workers.link import Receive
from runner.runs.workers.pool import END_SECONDS
from runner.runs.workers.remote_errors import RemoteError
from runner.spec.experiment import Execution

QUESTIONS = 2
"""Open at an actor at once: the one that waits for what it says, and one on its way with what it is told."""

TOLD_SECONDS = 20.0
"""After so long it is said that workers wait for room."""

PATIENCE_SECONDS = 600.0
"""With no worker placed for so long, the run ends."""

AGAIN_SECONDS = 2.0
"""Until an actor is asked for anew whose node was gone before it began: as long as Ray may take to notice."""

OTHER_NODE_SECONDS = 60.0
"""Until one is asked for anew whose node cannot play, while others do."""


@asynccontextmanager
async def ray_crew(execution: Execution) -> AsyncIterator[RayCrew]:
    """Workers in the cluster that this execution names.

    Raises:
        UsageError: Ray is not installed here.
        RunError: the cluster cannot be reached.
    """
    async with connected(execution):
        yield RayCrew(execution.count)


class RayCrew:
    """Starts workers as actors."""

    def __init__(self, workers: int, *, told: float = TOLD_SECONDS, patience: float = PATIENCE_SECONDS) -> None:
        self.ray: Any = ray_package()
        self.workers, self.told, self.patience = workers, told, patience
        self.placed: set[RayWorker] = set()
        self.has_played = False
        """Whether a worker has taken games: the cluster can play this run."""
        # A worker that dies is replaced by the run, which has counted what it left in flight by then.
        self._class = self.ray.remote(worker_class()).options(
            num_cpus=1, scheduling_strategy="SPREAD", max_restarts=0, max_task_retries=0, max_concurrency=1000
        )

    async def start(self, receive: Receive, ended: Callable[[str], None]) -> RayWorker:
        """A new worker, which is ready once the cluster has room for it."""
        worker = RayWorker(self, receive, ended)
        worker.begin()
        return worker

    def actor(self) -> Any:
        """A handle of a new actor, which is placed when there is room."""
        return self._class.remote()

    def waits(self) -> str:
        """What is said of workers that wait for room."""
        room = room_in_words(self.ray)
        if not self.placed:
            return f"no worker has a place in the Ray cluster yet: each takes 1 CPU, and it has {room}"
        return (
            f"{self.workers - len(self.placed)} of {self.workers} workers wait for a place in the Ray cluster, which "
            f"has {room}; the others play"
        )


class RayWorker:
    """An actor, and the link to it: it is asked for what it says all the time, and told things with the questions."""

    def __init__(self, crew: RayCrew, receive: Receive, ended: Callable[[str], None]) -> None:
        self._crew, self._receive = crew, receive
        self._ended: Callable[[str], None] | None = ended
        self._loop = asyncio.get_running_loop()
        self._actor: Any = None
        self._first: Any = None
        self._where = ""
        self._living: asyncio.Task[None] | None = None
        self._is_due = False
        self._forget()

    def _forget(self) -> None:
        """Nothing has been said yet, to an actor that is new."""
        self._in, self._out = FrameReader(), Outgoing()
        self._questions: deque[Any] = deque()
        self._number = 0
        self._is_placed = False

    def begin(self) -> None:
        """Ask for the actor."""
        self._living = asyncio.create_task(self._live())

    def send(self, message: Any) -> None:
        if self._first is None:
            self._first = message
        self._out.add(message)
        if self._is_placed and not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._ask_due)

    def _ask_due(self) -> None:
        self._is_due = False
        if self._is_placed:
            self._ask()

    def _ask(self) -> None:
        """Have a question open, and another one where there is something to tell."""
        while len(self._questions) < (QUESTIONS if self._out else 1):
            pieces = self._out.pieces(PIECES_AT_ONCE)
            self._questions.append(self._actor.exchange.remote(self._number, *pieces))
            self._number += 1

    async def _live(self) -> None:
        ray_error = self._crew.ray.exceptions.RayError
        try:
            while True:
                try:
                    await self._placed()
                    await self._talk()
                except CannotWorkError as error:
                    if not self._crew.has_played:
                        raise
                    self._note(f"{error}; the others play on")
                    await self._anew(OTHER_NODE_SECONDS)
                except ray_error:
                    if self._is_placed:
                        raise
                    await self._anew(AGAIN_SECONDS)
        except CannotWorkError as error:
            self._receive([messages.CannotStart(error.failure)])
        except ray_error as error:
            self._over(how_it_ended(error, self._where))
        except Exception as error:  # noqa: BLE001 - whatever it is, the run must hear of it
            self._receive([messages.CannotStart(RemoteError.of(error))])
        finally:
            self._crew.placed.discard(self)

    async def _placed(self) -> None:
        """Wait until the actor runs somewhere.

        Raises:
            CannotWorkError: it cannot play there.
            RunError: no worker has found a place for too long.
        """
        self._actor = self._crew.actor()
        hello = asyncio.ensure_future(_answer(self._actor.hello.remote()))
        try:
            begun = self._loop.time()
            while not hello.done():
                await asyncio.wait([hello], timeout=self._crew.told)
                if not hello.done():
                    self._still_waits(self._loop.time() - begun)
            said = hello.result()
        finally:
            hello.cancel()
        self._where = f"on node {said['node']} (pid {said['pid']})"
        if (wrong := wrong_node(said)) is not None:
            raise CannotWorkError(RemoteError.of(RunError(wrong)))
        self._is_placed = True
        self._crew.placed.add(self)

    def _still_waits(self, seconds: float) -> None:
        words = self._crew.waits()
        if not self._crew.placed and seconds >= self._crew.patience:
            raise RunError(
                f"{words}, after {seconds:.0f} s; what was paid for is kept. Add nodes or free some CPUs, or lower "
                "execution.workers, and run the same command again"
            )
        self._note(words)

    def _note(self, line: str) -> None:
        self._receive([messages.Noted(line.partition(":")[0], line)])

    async def _anew(self, seconds: float) -> None:
        """Let go of the actor, and ask for another one after a while."""
        self._kill()
        self._crew.placed.discard(self)
        self._forget()
        self._out.add(self._first)
        await asyncio.sleep(seconds)

    async def _talk(self) -> None:
        """Pass on what the actor says, until it is gone.

        Raises:
            CannotWorkError: it said that it cannot play.
        """
        while True:
            self._ask()
            answer = await self._questions[0]
            self._questions.popleft()
            for batch in self._in.batches([answer]):
                self._hear(batch)

    def _hear(self, batch: Sequence[Any]) -> None:
        for message in batch:
            if isinstance(message, messages.CannotStart):
                raise CannotWorkError(located(message.failure, self._where))
            if isinstance(message, messages.WorkerReady):
                self._crew.has_played = True
        self._receive(batch)

    def _over(self, how: str) -> None:
        """It is gone of itself; or cannot be reached, and is not to go on where nobody hears it."""
        self._kill()
        self._is_placed = False
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(how)

    def kill(self, how: str) -> None:
        if self._living is not None:
            self._living.cancel()
        self._over(f"{self._where} {how}")

    def _kill(self) -> None:
        if self._actor is not None:
            with suppress(Exception):  # it is gone, or the cluster is
                self._crew.ray.kill(self._actor, no_restart=True)

    async def end(self, *, at_once: bool) -> None:
        self._ended = None
        if not at_once and self._is_placed:
            with suppress(Exception):  # it has said all
                await asyncio.wait_for(_answer(self._actor.left.remote()), END_SECONDS)
        self._is_placed = False
        if self._living is not None:
            self._living.cancel()
            await asyncio.wait([self._living])
        self._kill()


async def _answer(reference: Any) -> Any:
    return await reference
