"""Limits on the rate of requests, on guesses of tokens, and on the number of open requests.

A bucket holds the number of requests that a caller may still make, and refills at a constant rate. Each account has
a bucket. Requests without a valid token use the bucket of their address. A request with an invalid token also takes
from a second, slower bucket of the address, to prevent guessing. `OpenRequestLimit` limits the number of open
requests from one address, so that one client cannot block others.
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

from runner.base.text import counted
from runner.server.web.api_errors import error_response
from runner.server.web.callers import DISCONNECTED, MAKE_ROOM, caller_of

BURST_SECONDS = 20.0
"""Size of a bucket, as a multiple of its rate. It allows bursts, because publishing sends many small files at once."""
GUESSES_PER_MINUTE = 60.0
"""Maximum number of requests with an invalid token from one address."""
VALID_SECONDS = 3600.0
"""Seconds until the rate limit looks a token up again. (Authentication looks the token up in every request.)"""
_MAX_CALLERS = 100_000
"""Maximum number of callers with a bucket, and of cached tokens."""
_TOKEN = re.compile(r"(?i:bearer) +(nip_[a-z0-9]{12}_\S+)")
UNLIMITED_PATHS = ("/healthz", "/readyz")
"""Paths without limits: health checks, which need few resources."""
_SIGN_IN_PATH = "/login"


class CallerBuckets:
    """The buckets of all callers."""

    def __init__(self, rate: float, size: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate, self._size, self._clock = rate, size, clock
        self._levels: OrderedDict[str, tuple[float, float]] = OrderedDict()
        """The level of each caller's bucket after the caller's last request, and the time of this request."""

    def wait_seconds(self, caller: str) -> float:
        """Return the seconds until a caller may make a request; 0 if now."""
        return max(0.0, (1.0 - self._level(caller)) / self._rate)

    def take(self, caller: str) -> None:
        """Count a request of a caller."""
        self._levels[caller] = (self._level(caller) - 1.0, self._clock())
        self._levels.move_to_end(caller)
        if len(self._levels) > _MAX_CALLERS:
            self._levels.popitem(last=False)

    def _level(self, caller: str) -> float:
        level, since = self._levels.get(caller, (self._size, self._clock()))
        return min(self._size, level + (self._clock() - since) * self._rate)


class TokenCache:
    """A cache of the accounts of valid tokens, by the hashes of the tokens."""

    def __init__(self, find_account: Callable[[str], str | None]) -> None:
        self._find_account = find_account
        self._accounts: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        """The account of each token, and the time until which the token counts as valid."""

    def cached_account(self, token: str) -> str | None:
        """Return the account of a token that is in the cache and counts as valid; None for other tokens."""
        account, valid_until = self._accounts.get(_hash(token), (None, 0.0))
        return account if valid_until > time.monotonic() else None

    async def look_up(self, token: str) -> str | None:
        """Return the account of a token according to the database, and cache it; None if the token is invalid.

        Raises:
            SQLAlchemyError: the database does not answer.
        """
        account = await run_in_threadpool(self._find_account, token)
        if account is None:
            return None
        self._accounts[_hash(token)] = account, time.monotonic() + VALID_SECONDS
        self._accounts.move_to_end(_hash(token))
        if len(self._accounts) > _MAX_CALLERS:
            self._accounts.popitem(last=False)
        return account

    def forget(self, token: str) -> None:
        """Remove a token from the cache."""
        self._accounts.pop(_hash(token), None)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class RateLimit:
    """Middleware that answers 429 to a caller with too many requests."""

    def __init__(
        self, app: ASGIApp, rate: float, proxies: tuple[str, ...], find_account: Callable[[str], str | None]
    ) -> None:
        """`find_account` returns the account of a token, or None for an invalid token."""
        self._app, self._proxies = app, proxies
        self._buckets = CallerBuckets(rate, rate * BURST_SECONDS) if rate > 0 else None
        self._guesses = CallerBuckets(GUESSES_PER_MINUTE / 60, GUESSES_PER_MINUTE)
        self._tokens = TokenCache(find_account)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNLIMITED_PATHS:
            await self._app(scope, receive, send)
            return
        address = caller_of(scope, self._proxies)
        header = Headers(scope=scope).get("authorization")
        match = _TOKEN.fullmatch(header.strip()) if header else None
        may_be_guess = header is not None or (scope["path"] == _SIGN_IN_PATH and scope["method"] == "POST")
        account = None if match is None else self._tokens.cached_account(match[1])
        wait = self._guesses.wait_seconds(address) if may_be_guess and account is None else 0.0
        if wait == 0.0 and match is not None and account is None:
            try:
                account = await self._tokens.look_up(match[1])
                may_be_guess = False  # an invalid token is counted here, so it must not be counted after the response
                if account is None:
                    self._guesses.take(address)
            except SQLAlchemyError:
                pass  # the request itself will fail with this error
        caller = address if account is None else f"account {account}"
        if self._buckets is not None:
            wait = max(wait, self._buckets.wait_seconds(caller))
        if wait > 0:
            await _too_many_requests(wait)(scope, receive, send)
            return
        if self._buckets is not None:
            self._buckets.take(caller)

        async def count_failed_guess(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                if may_be_guess:
                    self._guesses.take(address)
                if match is not None:  # so that requests with a revoked token use up only the bucket of their address
                    self._tokens.forget(match[1])
            await send(message)

        await self._app(scope, receive, count_failed_guess)


def _too_many_requests(wait: float) -> Response:
    seconds = math.ceil(wait)
    message = f"too many requests from this account or address; try again in {counted(seconds, 'second')}"
    return error_response(429, "too_many", message, headers={"retry-after": str(seconds)})


class OpenRequestLimit:
    """Middleware that answers 503 if too many requests are open, from one address or in total.

    It first tries to end another request whose client sends or reads slowly. It never refuses health checks.
    """

    def __init__(self, app: ASGIApp, max_requests: int, max_per_address: int, proxies: tuple[str, ...]) -> None:
        self._app, self._proxies = app, proxies
        self._max_requests, self._max_per_address = max_requests, max_per_address
        self._open: Counter[str] = Counter()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in UNLIMITED_PATHS:
            await self._app(scope, receive, send)
            return
        address = caller_of(scope, self._proxies)
        is_address_full = self._open[address] >= self._max_per_address
        make_room = scope.get(MAKE_ROOM)
        is_full = is_address_full or self._open.total() >= self._max_requests
        has_ended_other = is_full and make_room is not None and make_room(same_address=is_address_full)
        if is_full and not has_ended_other:
            origin = " from your address" if is_address_full else ""
            busy = f"the server has too many open requests{origin}; try again in a second"
            await error_response(503, "busy", busy, headers={"retry-after": "1"})(scope, receive, send)
            return

        async def send_while_connected(message: Message) -> None:
            if scope.get(DISCONNECTED) and message.get("more_body"):  # stop reading a large file
                raise ClientDisconnect
            await send(message)

        self._open[address] += 1
        try:
            await self._app(scope, receive, send_while_connected)
        except ClientDisconnect:
            return
        finally:
            self._open[address] -= 1
            if not self._open[address]:
                del self._open[address]
