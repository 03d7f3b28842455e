"""How much one caller may ask: requests a second, by account or address; who asks for more is told when to come again.

A caller has a bucket that fills at the rate. Who has a token that is good pays from a bucket of that token's own. The
address pays for all else, and for every token that is not good, wherever it was tried: who tries tokens is slowed down.
And one address has so many requests open at once, so that others are answered whatever it does with its own.
"""

from __future__ import annotations

import hashlib
import math
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from sqlalchemy.exc import SQLAlchemyError
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.web.api_errors import fault
from runner.server.web.callers import GONE, ROOM, address_of

AT_ONCE_SECONDS = 20.0
"""A bucket holds what comes in this time: a publish has many small files."""
WRONG_A_MINUTE = 60.0
GOOD_SECONDS = 3600.0
"""For which a token that was found good is taken for that, in this module alone."""
_MOST_CALLERS = 100_000
_TOKEN = re.compile(r"(?i:bearer) +(nip_([a-z0-9]{12})_\S+)")
FREE = ("/healthz", "/readyz")
"""What whoever watches the server asks for; both cost nothing to answer."""
_TRIES_TOKENS = "/login"


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


class Good:
    """Tokens that were found good a short while ago, by their hashes."""

    def __init__(self, is_good: Callable[[str], bool], clock: Callable[[], float] = time.monotonic) -> None:
        self._is_good, self._clock = is_good, clock
        self._until: OrderedDict[bytes, float] = OrderedDict()

    def knows(self, token: str) -> bool:
        """Whether it is known to be good, without a look at the database."""
        return self._until.get(_hash(token), 0.0) > self._clock()

    async def look(self, token: str) -> bool:
        """Whether it is good. Raises: SQLAlchemyError: the database does not answer."""
        if not await run_in_threadpool(self._is_good, token):
            return False
        self._until[_hash(token)] = self._clock() + GOOD_SECONDS
        self._until.move_to_end(_hash(token))
        if len(self._until) > _MOST_CALLERS:
            self._until.popitem(last=False)
        return True


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Limiting:
    """Answers with 429 who asks too much."""

    def __init__(self, app: ASGIApp, rate: float, proxies: tuple[str, ...], is_good: Callable[[str], bool]) -> None:
        self._app, self._proxies = app, proxies
        self._buckets = Buckets(rate, rate * AT_ONCE_SECONDS) if rate > 0 else None
        self._wrong = Buckets(WRONG_A_MINUTE / 60, WRONG_A_MINUTE)
        self._good = Good(is_good)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in FREE:
            await self._app(scope, receive, send)
            return
        address = address_of(scope, self._proxies)
        said = Headers(scope=scope).get("authorization")
        shape = _TOKEN.fullmatch(said.strip()) if said else None
        is_try = said is not None or (scope["path"] == _TRIES_TOKENS and scope["method"] == "POST")
        is_known = shape is not None and self._good.knows(shape[1])
        wait = self._wrong.wait(address) if is_try and not is_known else 0.0
        if wait == 0.0 and shape is not None and not is_known:
            try:
                is_known = await self._good.look(shape[1])
                is_try = False  # it is known now whether it is good, and counted here where it is not
                if not is_known:
                    self._wrong.take(address)
            except SQLAlchemyError:
                pass  # what is asked for says so
        payer = shape[2] if shape is not None and is_known else address
        if self._buckets is not None:
            wait = max(wait, self._buckets.wait(payer))
        if wait > 0:
            await _too_many(wait)(scope, receive, send)
            return
        if self._buckets is not None:
            self._buckets.take(payer)

        async def told(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401 and is_try:
                self._wrong.take(address)
            await send(message)

        await self._app(scope, receive, told)


def _too_many(wait: float) -> Response:
    seconds = math.ceil(wait)
    words = f"too many requests; come again in {seconds} second{'' if seconds == 1 else 's'}"
    return fault(429, "too_many", words, headers={"retry-after": str(seconds)})


class AtOnce:
    """Answers with 503 whoever has too many requests open, or where all together have; but says always that it lives.

    Who sends what it asks for slowly, or reads its answer slowly, has a request open all that time, which gives way.
    """

    def __init__(self, app: ASGIApp, most: int, most_of_one: int, proxies: tuple[str, ...]) -> None:
        self._app, self._most, self._most_of_one, self._proxies = app, most, most_of_one, proxies
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in FREE:
            await self._app(scope, receive, send)
            return
        address = address_of(scope, self._proxies)
        is_one = self._open[address] >= self._most_of_one
        make_room = scope.get(ROOM)
        is_over = is_one or self._open.total() >= self._most
        if is_over and not (make_room is not None and make_room(of_one=is_one)):
            whose = f"{self._most_of_one} requests of this address" if is_one else "as many requests as it takes"
            words = f"the server has {whose} open; come again in a second"
            await fault(503, "busy", words, headers={"retry-after": "1"})(scope, receive, send)
            return

        async def sent(message: Message) -> None:
            if scope.get(GONE) and message.get("more_body"):  # a large file is not read to its end for nobody
                raise ClientDisconnect
            await send(message)

        self._open[address] += 1
        try:
            await self._app(scope, receive, sent)
        except ClientDisconnect:
            return
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
