"""A model group at several servers: each game at one of them, and at another while that one is down.

A call whose server does not answer goes to the next in its order at once; a server whose breaker is open is left, but
for one call at a time that tries it, which is no attempt of the call's own. Once it answers, its games come back. While
all are down they are as one that is down: calls wait, one at a time tries each, and the last try of the last is the
end. Rate limits are no reason to leave: the call waits for its server.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from runner.aio import cancel_all
from runner.errors import ServerUnreachable, TransientError
from runner.models.base import Complete, Completion, Request
from runner.models.events import CallEvents
from runner.models.layers.breaker import Breaker
from runner.models.layers.placement import Placement
from runner.models.layers.retry import after_failure
from runner.models.policy import TransientPolicy


@dataclass(frozen=True)
class Server:
    """One of several: its breaker, and one attempt of a call to it."""

    breaker: Breaker
    complete: Complete


@dataclass
class _Tried:
    """How far one call has come."""

    attempts: int = 0
    """Those that the policy counts."""
    failed: int = 0
    since: float = 0.0
    """When the first one failed."""
    left: set[int] = field(default_factory=set)
    """The servers that did not answer it."""


class SeveralServers:
    """One way to ask a group that is served at several addresses, with its retries."""

    def __init__(
        self,
        servers: Sequence[Server],
        placement: Placement,
        policy: TransientPolicy,
        events: CallEvents,
        *,
        sleep: Callable[[float], Awaitable[object]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._servers = tuple(servers)
        self._placement = placement
        self._policy, self._events = policy, events
        self._sleep, self._clock = sleep, clock
        self._jitter = random.Random()

    async def complete(self, request: Request) -> Completion:
        """Ask the game's server, or the next ones.

        Raises:
            TransientError: as often as the policy allows no server answered.
            ServerUnreachable: all of them were given up.
        """
        tried = _Tried()
        while True:
            at, probe = await self._turn(request, tried)
            server = self._servers[at]
            try:
                return await server.breaker.ask(server.complete, request, probe=probe)
            except TransientError as error:
                wait, last = self._after(error, at, tried, probe=probe)
                await self._events.failed(request, tried.failed, error, -1.0 if last else wait)
                self._check()
                if last:
                    raise
                if wait > 0:
                    await self._sleep(wait)

    def _after(self, error: TransientError, at: int, tried: _Tried, *, probe: bool) -> tuple[float, bool]:
        """How long to wait before the next attempt, and whether there is none."""
        tried.failed += 1
        now = self._clock()
        tried.since = tried.since if tried.failed > 1 else now
        if error.unreachable or error.status is None or error.status in (502, 503, 504):
            tried.left.add(at)
        if probe:
            return 0.0, False  # how often and when a server is tried that is down, its breaker says
        elsewhere = any(self._is_up(other) and other not in tried.left for other in range(len(self._servers)))
        tried.attempts += 1
        wait, last = after_failure(self._policy, error, tried.attempts, now - tried.since, self._jitter)
        return (0.0 if at in tried.left and elsewhere else wait), last

    def _is_up(self, at: int) -> bool:
        return not self._servers[at].breaker.is_open

    def _is_due(self, at: int) -> bool:
        """Whether a server that is down may be tried now."""
        return not self._is_up(at) and self._servers[at].breaker.next_try() == 0.0

    async def _turn(self, request: Request, tried: _Tried) -> tuple[int, bool]:
        """The server that is to be asked, and whether the call tries one that was down; waits while all are."""
        while True:
            places = range(len(self._servers))
            some_are_up = any(map(self._is_up, places))
            for at in places:
                # A call tries a server once: the next try is another's, unless all wait.
                if self._is_due(at) and not (some_are_up and at in tried.left):
                    return at, True
            home = self._placement.home(request.sample, self._is_up)
            if self._is_up(home) and home not in tried.left:
                return home, False
            up = [at for at in self._placement.order(request.sample) if self._is_up(at)]
            if up:
                fresh = [at for at in up if at not in tried.left]
                if not fresh:
                    tried.left.clear()
                return (fresh or ([home] if home in up else up))[0], False
            self._check()
            await self._wait()

    def _check(self) -> None:
        """Raise where no server is asked any more.

        Raises:
            ServerUnreachable: all were given up.
        """
        if all(server.breaker.is_given_up for server in self._servers):
            why = "\n".join(f"  {server.breaker.why}" for server in self._servers)
            raise ServerUnreachable(
                f"cannot reach any of {len(self._servers)} servers:\n{why}\n"
                "What was paid for is kept; run the same command again when one is up. Where they are up and these "
                "calls fail all the same, raise retry.breaker.failures."
            )

    async def _wait(self) -> None:
        """Until a server may be tried, or something has changed."""
        tries = [seconds for server in self._servers if (seconds := server.breaker.next_try()) is not None]
        changes = {server.breaker.change() for server in self._servers}
        sleeping = [asyncio.create_task(self._slept(min(tries)))] if tries else []
        try:
            done, _ = await asyncio.wait({*changes, *sleeping}, return_when=asyncio.FIRST_COMPLETED)
            for one in sleeping:
                if one in done:
                    one.result()  # a run that is to stop says so here
        finally:
            await cancel_all(sleeping)

    async def _slept(self, seconds: float) -> None:
        await self._sleep(seconds)
