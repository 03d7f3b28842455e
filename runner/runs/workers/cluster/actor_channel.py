"""A worker's end of the channel, in a Ray actor: its messages wait until the writer calls.

The writer is not an actor, so nobody can call it. Instead it always has a call open at the actor, which returns as soon
as the worker has messages, or when the next call arrives, so that calls that bring messages never wait.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from runner.runs.workers.frames import FrameReader, Outbox
from runner.runs.workers.worker import Worker

PIECE_BYTES = 80 * 1024
"""Ray sends arguments and results below 100 KiB along with a call (`max_direct_call_object_size`). Larger ones go
to the shared memory or the disk of a node, where nothing of a run should be.
"""

ABANDONED_SECONDS = 120.0
"""A worker ends if its writer has not called for so long: the writer is dead, or takes this worker for dead."""


class ActorChannel:
    """Passes the messages of calls to a worker, and returns the worker's messages."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.worker.connect(self)
        self._reader, self._outbox = FrameReader(), Outbox()
        self._next = 0
        self._early: dict[int, asyncio.Future[None]] = {}
        self._open: asyncio.Future[bytes] | None = None
        """The result of the writer's last call, until that returns."""
        self._is_scheduled = False
        self._abandoned: asyncio.TimerHandle | None = None

    def send(self, message: Any) -> None:
        """Send a message as the result of the writer's open call."""
        self._outbox.add(message)
        if not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_scheduled = False
        self._return()

    def _return(self) -> None:
        """Let the open call return."""
        if self._open is not None and not self._open.done():
            self._open.set_result(bytes(self._outbox.take(PIECE_BYTES)))
            self._abandoned = asyncio.get_running_loop().call_later(ABANDONED_SECONDS, os._exit, 1)

    async def exchange(self, number: int, pieces: Sequence[bytes]) -> bytes:
        """Take bytes of the writer, and return the worker's next bytes; none if the next call arrives first.

        Calls are numbered from 0, because Ray may deliver them in another order.
        """
        loop = asyncio.get_running_loop()
        if number != self._next:
            turn = self._early[number] = loop.create_future()
            await turn
        self._next = number + 1
        self._return()
        if self._abandoned is not None:
            self._abandoned.cancel()
        result = self._open = loop.create_future()
        for piece in pieces:
            for batch in self._reader.feed(piece):
                self.worker.receive(batch)
        if self._outbox:
            self._return()
        if (following := self._early.pop(number + 1, None)) is not None:
            following.set_result(None)
        data: bytes = await result
        return data
