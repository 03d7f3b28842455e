"""How much one caller may ask: requests a second, by account or address; who asks for more is told when to come again.

A caller has a bucket that fills at the rate. Who has a token pays from a bucket of that token's own, and the address
pays for every token that is not good: who tries tokens is slowed down, whatever is tried.
"""

from __future__ import annotations

import ipaddress
import math
import re
import time
from collections import OrderedDict
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.web.faults import fault

AT_ONCE_SECONDS = 20.0
"""A bucket holds what comes in this time: a publish has many small files."""
WRONG_A_MINUTE = 60.0
_MOST_CALLERS = 100_000
_TOKEN = re.compile(r"(?i:bearer) +(nip_[a-z0-9]{12})_")
_FREE = ("/healthz", "/readyz")


def address_of(scope: Scope, proxies: tuple[str, ...]) -> str:
    """Who asks: the other end of the connection, or whom a proxy that is trusted says last."""
    client = scope.get("client")
    peer = str(client[0]) if client else ""
    if not _is_in(peer, proxies):
        return peer
    said = Headers(scope=scope).getlist("x-forwarded-for")
    last = said[-1].rpartition(",")[2].strip() if said else ""
    try:
        found = ipaddress.ip_address(last)
    except ValueError:
        return peer
    if found.version == 6:  # one caller has a network of them
        return str(ipaddress.ip_network((found, 64), strict=False))
    return str(found)


def _is_in(address: str, networks: tuple[str, ...]) -> bool:
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return any(found in ipaddress.ip_network(network) for network in networks)


class Buckets:
    """What each caller may still ask, in whole and parts of requests."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._clock = rate, size, clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Callers of whom it is known what they asked."""
        return len(self._left)

    def wait(self, caller: str) -> float:
        """Seconds until a caller may ask; 0: now."""
        return max(0.0, (1.0 - self._have(caller)) / self._rate)

    def take(self, caller: str) -> None:
        self._left[caller] = (self._have(caller) - 1.0, self._clock())
        self._left.move_to_end(caller)
        if len(self._left) > _MOST_CALLERS:
            self._left.popitem(last=False)

    def _have(self, caller: str) -> float:
        left, at = self._left.get(caller, (self._size, self._clock()))
        return min(self._size, left + (self._clock() - at) * self._rate)


class Limiting:
    """Answers with 429 who asks too much."""

    def __init__(self, app: ASGIApp, rate: float, proxies: tuple[str, ...]) -> None:
        self._app, self._proxies = app, proxies
        self._buckets = Buckets(rate, rate * AT_ONCE_SECONDS) if rate > 0 else None
        self._wrong = Buckets(WRONG_A_MINUTE / 60, WRONG_A_MINUTE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in _FREE:
            await self._app(scope, receive, send)
            return
        address = address_of(scope, self._proxies)
        said = Headers(scope=scope).get("authorization")
        token = _TOKEN.match(said) if said else None
        caller = token[1] if token else address
        wait = 0.0 if self._buckets is None else self._buckets.wait(caller)
        if said is not None:
            wait = max(wait, self._wrong.wait(address))
        if wait > 0:
            answer = fault(429, "too_many", "too many requests; come again after the seconds of Retry-After")
            answer.headers["retry-after"] = str(math.ceil(wait))
            await answer(scope, receive, send)
            return
        if self._buckets is not None:
            self._buckets.take(caller)

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401 and said is not None:
                self._wrong.take(address)
            await send(message)

        await self._app(scope, receive, told)
