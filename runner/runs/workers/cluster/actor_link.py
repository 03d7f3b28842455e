"""A worker's end of the link to the writer, in an actor: what it says waits until the writer asks.

The writer is no actor, so that nobody can call it. It has one question open at all times, which is answered once there
is something to say; with the next one, at the latest, so that questions that bring messages do not wait.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from runner.runs.workers.cluster.frames import FrameReader, Outgoing
from runner.runs.workers.worker import Playing

ALONE_SECONDS = 120.0
"""A worker that the writer has asked nothing for so long ends: it is dead, or counts this one as dead."""


class ActorLink:
    """Plays what the writer leases, and answers its questions."""

    def __init__(self) -> None:
        self._playing = Playing()
        self._playing.connected(self)
        self._in, self._out = FrameReader(), Outgoing()
        self._arrived = 0
        self._early: dict[int, asyncio.Future[None]] = {}
        self._open: asyncio.Future[bytes] | None = None
        """The writer's last question, as long as it has no answer."""
        self._is_due = False
        self._alone: asyncio.TimerHandle | None = None

    def send(self, message: Any) -> None:
        """Say something, with the answer to the writer's question."""
        self._out.add(message)
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._answer_due)

    def _answer_due(self) -> None:
        self._is_due = False
        self._answer()

    def _answer(self) -> None:
        if self._open is not None and not self._open.done():
            self._open.set_result(b"".join(self._out.pieces(1)))
            self._alone = asyncio.get_running_loop().call_later(ALONE_SECONDS, os._exit, 1)

    def close(self) -> None:
        """The process ends with the actor: nothing is to be let go of."""

    async def exchange(self, number: int, pieces: Sequence[bytes]) -> bytes:
        """Take the writer's bytes, and give the next of ours once there are some; none where a new question came.

        Questions are numbered from 0, because Ray may hand them over in another order.
        """
        loop = asyncio.get_running_loop()
        if number != self._arrived:
            turn = self._early[number] = loop.create_future()
            await turn
        self._arrived = number + 1
        self._answer()
        if self._alone is not None:
            self._alone.cancel()
        answer = self._open = loop.create_future()
        for batch in self._in.batches(pieces):
            self._playing.receive(batch)
        if self._out:
            self._answer()
        if (following := self._early.pop(number + 1, None)) is not None:
            following.set_result(None)
        said: bytes = await answer
        return said

    async def left(self) -> None:
        """Wait until all is said and closed."""
        await self._playing.left.wait()
