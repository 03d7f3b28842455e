"""Connections: ended where the head of a request does not come, and, where all are taken, where a client is waited for.

Who asks for something is answered, however many connections others hold open and say nothing on.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

HEAD_SECONDS = 20.0
"""In which the head of a request must come, once its connection is there or its first byte is."""


class Bounded(H11Protocol):
    """A connection that waits for its client for a while, and gives way to others before that."""

    _waiting: asyncio.TimerHandle | None = None
    since = 0.0
    is_given_up = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self._wait()
        self._make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.is_between():
            self._wait()
        else:
            self._wait_no_more()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        super().connection_lost(exc)

    def is_between(self) -> bool:
        """Whether nothing is asked for now."""
        cycle: RequestResponseCycle | None = self.cycle  # none before the first request, whatever its type says
        return cycle is None or cycle.response_complete

    def is_kept_waiting(self) -> bool:
        """Whether it is the client's turn: to send a head, or more of a body, or to read what it asked for."""
        return self.is_between() or self.cycle.more_body or self.flow.write_paused

    def _wait(self) -> None:
        if self._waiting is None:
            self._waiting = self.loop.call_later(HEAD_SECONDS, self._end)

    def _wait_no_more(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _end(self) -> None:
        self._waiting = None
        if self.is_between():
            self.transport.close()

    def _make_room(self) -> None:
        """Where no more connections are taken, give up one that waits for its client.

        First one of the address that has most of them, there one without a request, and of those the oldest: what
        was being sent is gone on with where it was cut off.
        """
        others = [one for one in cast("set[Bounded]", self.connections) if one is not self and not one.is_given_up]
        if self.limit_concurrency is None or len(others) + 1 < self.limit_concurrency:
            return
        held = Counter(one.address() for one in others)
        waiting = [one for one in others if one.is_kept_waiting()]
        if waiting:
            given_up = min(waiting, key=lambda one: (-held[one.address()], not one.is_between(), one.since))
            given_up.is_given_up = True
            given_up.transport.abort()

    def address(self) -> str:
        """Of its other end."""
        return self.client[0] if self.client else ""
