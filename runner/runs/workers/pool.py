"""Where workers come from: an interface, and processes of this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

from runner.runs.workers.exit_reasons import how_ended
from runner.runs.workers.link import Receive, SocketLink
from runner.runs.workers.prestarted import Process, taken

END_SECONDS = 5.0
"""How long a process may take to end once nobody is at the other side."""


class WorkerHandle(Protocol):
    """A worker, from the writer's side."""

    def send(self, message: Any) -> None: ...

    def kill(self, how: str) -> None:
        """End it, as it does not end of itself: `ended` is called, with how this is said."""
        ...

    async def end(self, *, at_once: bool) -> None:
        """Let go of it, and see that it is gone; `at_once` leaves it no time."""
        ...


class WorkerPool(Protocol):
    """Starts workers: here, or on other machines."""

    async def start(self, receive: Receive, ended: Callable[[str], None]) -> WorkerHandle:
        """A new worker. `ended` is called once, with how it ended, when it is gone of itself.

        Raises:
            RunError: no worker can be started.
        """
        ...


class LocalCrew:
    """Workers that are processes of this machine."""

    async def start(self, receive: Receive, ended: Callable[[str], None]) -> WorkerHandle:
        worker = LocalWorker(ended)
        await worker.begin(receive)
        return worker


class LocalWorker:
    """A process, and the link to it."""

    def __init__(self, ended: Callable[[str], None]) -> None:
        self._ended: Callable[[str], None] | None = ended
        self._link: SocketLink | None = None
        self._process: Process | None = None
        self._watching: asyncio.Task[None] | None = None
        self._how = ""

    async def begin(self, receive: Receive) -> None:
        """Start the process.

        Raises:
            RunError: it cannot be started.
        """
        self._process, ours, self._said, arena = taken()
        try:
            self._link = await SocketLink.over(ours, receive, self._alone, incoming=arena)
        except BaseException:
            self._process.kill()
            raise

    def send(self, message: Any) -> None:
        if self._link is not None:
            self._link.send(message)

    def _alone(self) -> None:
        """The socket is closed: so is the process, or it is about to be."""
        self._link = None
        if self._ended is not None:
            self._watching = asyncio.create_task(self._tell())

    def kill(self, how: str) -> None:
        self._how = how
        if self._process is not None:
            self._process.kill()  # the socket tells the rest, after what it holds that was not read yet

    async def _tell(self) -> None:
        how = await self._reaped(END_SECONDS)
        ended, self._ended = self._ended, None
        if ended is not None:
            ended(self._how or how)

    async def _reaped(self, seconds: float) -> str:
        """How the process ended; one that does not within this time is killed."""
        process = self._process
        assert process is not None
        loop = asyncio.get_running_loop()
        late = loop.time() + seconds
        wait = 0.001
        while (code := process.poll()) is None:
            if loop.time() >= late:
                with suppress(OSError):
                    process.kill()
            await asyncio.sleep(wait)
            wait = min(2 * wait, 0.05)
        return how_ended(code, self._said)

    async def end(self, *, at_once: bool) -> None:
        self._ended = None
        if self._link is not None:
            self._link.close()
        if self._process is not None:
            await self._reaped(0.0 if at_once else END_SECONDS)
