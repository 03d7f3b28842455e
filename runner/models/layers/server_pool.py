"""A model group at several servers: each game at one of them, and at another while that one is down or will not.

A call whose server does not answer, or fails in it, goes to the next in its order at once; a server whose breaker is
open is left, but for one call at a time that tries it, which is no attempt of the call's own. Once it answers, its
games come back. While all are down they are as one that is down: calls wait, one at a time tries each, and the last try
of the last is the end. Rate limits are no reason to leave: the call waits for its server.

What one server refuses, the others are asked, each once and at once; what all refuse is judged as one server's refusal.
So the results do not depend on the servers. One that does not take what the others do is left (`standing`).
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from runner.base.async_runner import cancel_all
from runner.base.errors import CallError, NipRunError, ServerUnreachable, TransientError
from runner.models.call_events import CallEvents
from runner.models.interface import Complete, Completion, Request
from runner.models.layers.breaker import ALIVE, Breaker
from runner.models.layers.placement import Placement
from runner.models.layers.retry import after_failure
from runner.models.layers.server_health import ServerHealth, is_fault, is_refusal, judged
from runner.models.retry_policy import TransientPolicy


@dataclass(frozen=True)
class PooledServer:
    """One of several: its breaker, how it stands among them, and one attempt of a call to it."""

    breaker: Breaker
    standing: ServerHealth
    complete: Complete

    @property
    def is_up(self) -> bool:
        """Whether it seems to be there, and to take calls."""
        return not (self.breaker.is_open or self.standing.is_left)

    @property
    def is_due(self) -> bool:
        """Whether it is down or left, and may be tried now."""
        return self.breaker.next_try() == 0.0 if self.breaker.is_open else self.standing.is_due

    async def ask(self, request: Request, *, probe: bool) -> Completion:
        """Ask it; `probe`: as the one call that tries it."""
        is_open = self.breaker.is_open
        if not probe or is_open:
            return await self.breaker.ask(self.complete, request, probe=probe)
        self.standing.trying()
        try:
            return await self.breaker.ask(self.complete, request, probe=False)
        finally:
            self.standing.tried()


@dataclass
class _Tried:
    """How far one call has come."""

    attempts: int = 0
    """Those that the policy counts."""
    failed: int = 0
    since: float | None = None
    """When the first one failed."""
    left: set[int] = field(default_factory=set)
    """The servers that did not answer it."""
    refused: dict[int, CallError] = field(default_factory=dict)
    """Those that will not take it, in the order in which they were asked."""
    faults: dict[int, CallError] = field(default_factory=dict)
    """Those that failed in it."""


class SeveralServers:
    """One way to ask a group that is served at several addresses, with its retries."""

    def __init__(
        self,
        servers: Sequence[PooledServer],
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
            ProviderRefusal, ContextExceededError, RefusedError: all of them refuse it.
        """
        tried = _Tried()
        while True:
            at, probe = await self._turn(request, tried)
            try:
                completion = await self._servers[at].ask(request, probe=probe)
            except TransientError as error:
                wait, last = self._after(error, at, tried, probe=probe)
                await self._events.failed(request, tried.failed, error, -1.0 if last else wait)
                self._check()
                if last:
                    raise
                if wait > 0:
                    await self._sleep(wait)
            except CallError as error:
                if not is_refusal(error):
                    raise
                tried.failed += 1
                tried.refused[at] = error
                verdict = self._verdict(request, tried)
                await self._events.failed(request, tried.failed, error, 0.0 if verdict is None else -1.0)
                if verdict is not None:
                    raise verdict from None
            else:
                self._taken(request, at, tried)
                return completion

    def _taken(self, request: Request, by: int, tried: _Tried) -> None:
        """One has answered: what others said before tells how they stand."""
        self._servers[by].standing.answered()
        for at, error in (*tried.refused.items(), *tried.faults.items()):
            if at != by:
                self._servers[at].standing.took_another(request.sample, error)

    def _after(self, error: TransientError, at: int, tried: _Tried, *, probe: bool) -> tuple[float, bool]:
        """How long to wait before the next attempt, and whether there is none."""
        tried.failed += 1
        now = self._clock()
        tried.since = now if tried.since is None else tried.since
        if error.status not in ALIVE:
            tried.left.add(at)
        if is_fault(error):
            tried.faults[at] = error
        if probe:
            return 0.0, False  # how often and when a server is tried that is down, its breaker says
        elsewhere = any(other not in tried.left for other in self._up(tried))
        tried.attempts += 1
        wait, last = after_failure(self._policy, error, tried.attempts, now - tried.since, self._jitter)
        return (0.0 if at in tried.left and elsewhere else wait), last

    def _is_up(self, at: int) -> bool:
        return self._servers[at].is_up

    def _open_to(self, tried: _Tried) -> list[int]:
        """The servers that have not refused a call."""
        return [at for at in range(len(self._servers)) if at not in tried.refused]

    def _up(self, tried: _Tried) -> list[int]:
        """Those that a call may be sent to: where all that are there were left, and none has refused it, these."""
        wanted = self._open_to(tried)
        up = [at for at in wanted if self._servers[at].is_up]
        return up or [at for at in wanted if not (tried.refused or self._servers[at].breaker.is_open)]

    async def _turn(self, request: Request, tried: _Tried) -> tuple[int, bool]:
        """The server that is to be asked, and whether the call tries one that was left; waits while all are down."""
        while True:
            up = self._up(tried)
            for at in self._open_to(tried):
                # A call tries a server once: the next try is another's, unless all wait.
                if at not in up and self._servers[at].is_due and not (up and at in tried.left):
                    return at, True
            home = self._placement.home(request.sample, self._is_up)
            if home in up and home not in tried.left:
                return home, False
            if up:
                up = [at for at in self._placement.order(request.sample) if at in up]
                fresh = [at for at in up if at not in tried.left]
                if not fresh:
                    tried.left.clear()
                return (fresh or ([home] if home in up else up))[0], False
            self._check()
            verdict = self._verdict(request, tried)
            if verdict is not None:
                raise verdict
            await self._wait(tried)

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

    def _verdict(self, request: Request, tried: _Tried) -> NipRunError | None:
        """What is to be made of a call that was refused, once no other server is left to be asked."""
        others = [self._servers[at] for at in self._open_to(tried)]
        if not tried.refused or any(not (one.standing.is_left or one.breaker.is_given_up) for one in others):
            return None
        gone = [one.breaker.why for one in others if one.breaker.is_given_up]
        return judged(request.group, list(tried.refused.values()), gone)

    async def _wait(self, tried: _Tried) -> None:
        """Until a server may be tried, or something has changed."""
        breakers = [self._servers[at].breaker for at in self._open_to(tried)]
        breakers = [breaker for breaker in breakers if breaker.is_open]
        tries = [seconds for breaker in breakers if (seconds := breaker.next_try()) is not None]
        changes = {breaker.change() for breaker in breakers}
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
