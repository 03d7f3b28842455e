"""Limits on connections, which keep the server reachable while some clients hold idle or slow connections open.

The server closes a connection if the head of a request (its first line and headers) does not arrive in time. If there
are too many connections, the server closes one that waits for its client to send or to read. The limit for one address
does not apply to proxies. uvicorn uses `connection_class` for all connections.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from runner.server.settings import Settings
from runner.server.web.callers import DISCONNECTED, MAKE_ROOM, caller_key, is_within

HEAD_SECONDS = 20.0
"""Time limit for the head of a request, from the start of the connection or, later, from the head's first byte."""


class LimitedConnection(H11Protocol):
    """A connection with a time limit for request heads. The server may close it earlier to make room for others."""

    max_connections = max_per_address = 0
    """Maximum connections, in total and from one address; `connection_class` sets both numbers."""
    proxies: Sequence[str] = ()
    _timeout: asyncio.TimerHandle | None = None
    last_active_at = 0.0
    """Time when the connection opened or its last response was complete."""
    is_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.last_active_at = self.loop.time()
        self._start_timeout()
        self._enforce_limits()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.scope is not None:  # a request was parsed; its handler starts after this method returns
            cast("dict[str, Any]", self.scope)[MAKE_ROOM] = self.make_room
        if self.is_idle():
            self._start_timeout()
        else:
            self._cancel_timeout()

    def on_response_complete(self) -> None:
        self.last_active_at = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        scope = cast("dict[str, Any] | None", self.scope)  # None before the first request
        if scope is not None:
            scope[DISCONNECTED] = True
        super().connection_lost(exc)

    def is_idle(self) -> bool:
        """Return whether no request is in progress."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request, contrary to its type
        return cycle is None or cycle.response_complete

    def is_waiting_for_client(self) -> bool:
        """Return whether the server waits until the client sends a head or more of a body, or reads a response."""
        return self.is_idle() or self.cycle.more_body or self.flow.write_paused

    def _start_timeout(self) -> None:
        if self._timeout is None:
            self._timeout = self.loop.call_later(HEAD_SECONDS, self._on_timeout)

    def _cancel_timeout(self) -> None:
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _on_timeout(self) -> None:
        self._timeout = None
        if self.is_idle():
            self.transport.close()

    def _enforce_limits(self) -> None:
        """Close another connection, chosen by `_close_waiting`, if there are too many, in total or from one address.

        If its client was sending or receiving a file, the client can resume.
        """
        candidates = self._other_connections()
        counts = Counter(connection.address() for connection in candidates)
        address = self.address()
        if counts[address] >= self.max_per_address and not is_within(address, self.proxies):
            _close_waiting([connection for connection in candidates if connection.address() == address], counts)
        elif len(candidates) + 1 >= self.max_connections:
            _close_waiting(candidates, counts)

    def make_room(self, *, same_address: bool) -> bool:
        """End another request that waits for its client, and return whether there was one.

        With `same_address`, end only a request from this connection's address. If this address is a proxy, end none,
        because its requests come from many clients.
        """
        address = self.address()
        if same_address and is_within(address, self.proxies):
            return False
        active = [connection for connection in self._other_connections() if not connection.is_idle()]
        candidates = [connection for connection in active if not same_address or connection.address() == address]
        return _close_waiting(candidates, Counter(connection.address() for connection in candidates))

    def _other_connections(self) -> list[LimitedConnection]:
        connections = cast("set[LimitedConnection]", self.connections)
        return [connection for connection in connections if connection is not self and not connection.is_closed]

    def address(self) -> str:
        """Return the caller that the connection counts for in limits."""
        return caller_key(self.client[0]) if self.client else ""


def _close_waiting(connections: Iterable[LimitedConnection], counts: Mapping[str, int]) -> bool:
    """Close one of the connections that wait for their client, and return whether there was one.

    The connection is chosen from the address with the most connections (`counts`). Idle connections are preferred, and
    then connections that have been inactive for longer.
    """

    def sort_key(connection: LimitedConnection) -> tuple[int, bool, float]:
        return -counts[connection.address()], not connection.is_idle(), connection.last_active_at

    waiting = (connection for connection in connections if connection.is_waiting_for_client())
    chosen = min(waiting, key=sort_key, default=None)
    if chosen is None:
        return False
    chosen.is_closed = True
    chosen.transport.abort()
    return True


def connection_class(settings: Settings) -> type[LimitedConnection]:
    """Return the connection class for a server's settings."""

    class _Connection(LimitedConnection):
        max_connections, max_per_address = settings.connections, settings.connections_per_address
        proxies = settings.proxies

    return _Connection
