"""Connections: ended where the head of a request does not come, and, where all are taken, where a client is waited for.

Who asks for something is answered, however many connections others hold open and say nothing on. An address has so many
connections; a proxy, whose connections are those of many, any number.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from runner.server.settings import Settings
from runner.server.web.callers import GONE, ROOM, caller, is_within

HEAD_SECONDS = 20.0
"""In which the head of a request must come, once its connection is there or its first byte is."""


class Bounded(H11Protocol):
    """A connection that waits for its client for a while, and gives way to others before that."""

    most = most_of_one = 0
    """Connections, and those of one address; see `bounded`."""
    proxies: Sequence[str] = ()
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
        if self.scope is not None:  # its request is begun once this returns
            cast("dict[str, Any]", self.scope)[ROOM] = self.make_room
        if self.is_between():
            self._wait()
        else:
            self._wait_no_more()

    def on_response_complete(self) -> None:
        self.since = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wait_no_more()
        scope = cast("dict[str, Any] | None", self.scope)  # none before the first request
        if scope is not None:
            scope[GONE] = True
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
        """Where this is one too many, of its address or of all, give up one that waits for its client.

        First one of the address that has most of them, there one without a request, and of those the oldest: what
        was being sent is gone on with where it was cut off.
        """
        others = self._others()
        held = Counter(one.address() for one in others)
        here = self.address()
        if held[here] >= self.most_of_one and not is_within(here, self.proxies):
            _give_up([one for one in others if one.address() == here], held)
        elif len(others) + 1 >= self.most:
            _give_up(others, held)

    def make_room(self, *, of_one: bool) -> bool:
        """End a request that waits for its client, of this address or of any; whether there was one.

        Whose a proxy's requests are is not known here, so that none of them ends for another of one address.
        """
        here = self.address()
        if of_one and is_within(here, self.proxies):
            return False
        others = [one for one in self._others() if not one.is_between() and (not of_one or one.address() == here)]
        return _give_up(others, Counter(one.address() for one in others))

    def _others(self) -> list[Bounded]:
        return [one for one in cast("set[Bounded]", self.connections) if one is not self and not one.is_given_up]

    def address(self) -> str:
        """Of its other end, as limits count it."""
        return caller(self.client[0]) if self.client else ""


def _give_up(some: Iterable[Bounded], held: Mapping[str, int]) -> bool:
    waiting = [one for one in some if one.is_kept_waiting()]
    if waiting:
        given_up = min(waiting, key=lambda one: (-held[one.address()], not one.is_between(), one.since))
        given_up.is_given_up = True
        given_up.transport.abort()
    return bool(waiting)


def bounded(settings: Settings) -> type[Bounded]:
    """Connections of a server."""
    said = {"most": settings.connections, "most_of_one": settings.connections_of_one, "proxies": settings.proxies}
    return type("BoundedBySettings", (Bounded,), said)
