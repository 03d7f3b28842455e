"""The worker's end of the channel in a Ray actor.

The writer is the main process of a run with workers. It is not an actor, so a worker cannot call the writer. Instead,
the writer always has an open call to the actor. This call returns as soon as the worker has messages, or when the
writer's next call arrives.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from runner.runs.workers.frames import FrameReader, Outbox
from runner.runs.workers.worker import Worker

PIECE_BYTES = 80 * 1024
"""The maximum size of an argument or result of a call, below Ray's `max_direct_call_object_size` (100 KiB).

Ray would store larger data in the shared memory or on the disk of a node, where a run must not leave data.
"""

ABANDONED_SECONDS = 120.0
"""A worker ends after this time without a call, because the writer is dead or no longer needs the worker."""


class ActorChannel:
    """Passes the writer's messages to a worker, and returns the worker's messages as results of the writer's calls."""

    def __init__(self) -> None:
        self.worker = Worker()
        self.worker.connect(self)
        self._reader, self._outbox = FrameReader(), Outbox()
        self._next_number = 0
        """The number of the writer's next call."""
        self._early_calls: dict[int, asyncio.Future[None]] = {}
        """Futures, by number, of the calls that arrived before a call with a lower number."""
        self._open_call: asyncio.Future[bytes] | None = None
        """The result of the writer's open call."""
        self._is_flush_scheduled = False
        self._abandon_timer: asyncio.TimerHandle | None = None

    def send(self, message: Any) -> None:
        """Send a message as the result of the writer's open call."""
        self._outbox.add(message)
        if not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            asyncio.get_running_loop().call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        self._return_messages()

    def _return_messages(self) -> None:
        """Return the waiting messages as the result of the open call."""
        if self._open_call is not None and not self._open_call.done():
            self._open_call.set_result(bytes(self._outbox.take(PIECE_BYTES)))
            self._abandon_timer = asyncio.get_running_loop().call_later(ABANDONED_SECONDS, os._exit, 1)

    async def exchange(self, number: int, pieces: Sequence[bytes]) -> bytes:
        """Receive bytes from the writer, and return the worker's next bytes.

        The result is empty if the next call arrives before the worker has messages. The writer numbers its calls from
        0, because Ray may deliver them in another order.
        """
        loop = asyncio.get_running_loop()
        if number != self._next_number:
            turn_future = self._early_calls[number] = loop.create_future()
            await turn_future
        self._next_number = number + 1
        self._return_messages()
        if self._abandon_timer is not None:
            self._abandon_timer.cancel()
        result = self._open_call = loop.create_future()
        for piece in pieces:
            for batch in self._reader.feed(piece):
                self.worker.receive(batch)
        if self._outbox:
            self._return_messages()
        if (next_call := self._early_calls.pop(number + 1, None)) is not None:
            next_call.set_result(None)
        data: bytes = await result
        return data
