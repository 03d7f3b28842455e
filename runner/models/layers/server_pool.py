"""A model group at several servers: each game at one of them, and at another while that one is down or refuses.

A call whose server does not answer, or fails in it, goes to the next server in its order at once. A server whose
breaker is open gets one call at a time, which is no attempt of the call's own; once it answers, its games come back.
While all are down they are like one server that is down: calls wait, one at a time tries each, and the last try of the
last server ends the run. Rate limits are no reason to leave: the call waits for its server.

What one server refuses is sent to each of the others once; what all refuse is judged like one server's refusal, so that
results do not depend on the servers. A server that refuses what the others take is left (see `server_health`).

The calls of one agent in one game stay at one server, where their prefix is cached. The order of preference is by
rendezvous hashing (Thaler and Ravishankar, 1998) of datapoint and agent, so that repeats of a datapoint, whose prompts
begin alike, prefer one server, and a server that is added or removed moves only its own share. A game goes to the first
server in its order that has no more than its share of the games in play (Mirrokni, Thorup and Zadimoghaddam, 2018, by
the same bound for each agent).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from runner.base.async_runner import cancel_all
from runner.base.errors import CallError, NipRunError, ServerUnreachable, TransientError
from runner.models.call_events import CallEvents
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.layers.breaker import ALIVE, Breaker
from runner.models.layers.retry import after_failure
from runner.models.layers.server_health import ServerHealth, is_fault, is_refusal, judge_refusals
from runner.models.retry_policy import TransientPolicy

BOUND = 1.05
"""No server gets a game that would give it more than this many times the mean number of games in play."""

Rollout = tuple[str, int]
"""A datapoint's id and the number of the rollout."""


class Placement:
    """Which games are played at which server; servers are numbered."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = tuple(server.encode() for server in servers)
        self._homes: dict[Rollout, dict[str, int]] = {}
        self._in_play: dict[str, list[int]] = {}

    def order(self, sample: SampleKey) -> list[int]:
        """Return all servers, the preferred one first."""
        key = f"{sample.datapoint}\0{sample.agent}\0".encode("utf-8", "surrogatepass")
        weights = [hashlib.blake2b(key + server, digest_size=8).digest() for server in self._servers]
        return sorted(range(len(weights)), key=weights.__getitem__)

    def home(self, sample: SampleKey, is_up: Callable[[int], bool]) -> int:
        """Return the server of this sample's game and agent; a new game goes to a server that is up."""
        homes = self._homes.setdefault((sample.datapoint, sample.repeat), {})
        home = homes.get(sample.agent)
        if home is None:
            home = homes[sample.agent] = self._place(sample, is_up)
        return home

    def _place(self, sample: SampleKey, is_up: Callable[[int], bool]) -> int:
        in_play = self._in_play.setdefault(sample.agent, [0] * len(self._servers))
        order = self.order(sample)
        candidates = [server for server in order if is_up(server)] or order
        most = math.ceil(BOUND * (sum(in_play[server] for server in candidates) + 1) / len(candidates))
        # The least loaded server is below the mean, and so below this.
        home = next(server for server in candidates if in_play[server] < most)
        in_play[home] += 1
        return home

    def ended(self, rollout: Rollout) -> None:
        """Free the places of a game that is over; one that has none is ignored."""
        for agent, home in self._homes.pop(rollout, {}).items():
            self._in_play[agent][home] -= 1


@dataclass(frozen=True)
class PooledServer:
    """One server of a pool; `complete` makes one attempt of a call to it."""

    breaker: Breaker
    health: ServerHealth
    complete: Complete

    @property
    def is_up(self) -> bool:
        """Whether it answers, and takes calls."""
        return not (self.breaker.is_open or self.health.is_left)

    @property
    def is_due(self) -> bool:
        """Whether it is down or left, and may be tried now."""
        return self.breaker.next_try() == 0.0 if self.breaker.is_open else self.health.is_due

    async def ask(self, request: Request, *, probe: bool) -> Completion:
        """Ask it; `probe`: as the one call that tries it."""
        if not probe or self.breaker.is_open:
            return await self.breaker.ask(self.complete, request, probe=probe)
        with self.health.probe():
            return await self.breaker.ask(self.complete, request, probe=False)


@dataclass
class _Progress:
    """How far one call has come."""

    attempts: int = 0
    """Those that the policy counts."""
    failed: int = 0
    since: float | None = None
    """When the first attempt failed."""
    left: set[int] = field(default_factory=set)
    """The servers that did not answer."""
    refused: dict[int, CallError] = field(default_factory=dict)
    """The servers that refused the call, in the order in which they were asked."""
    faults: dict[int, CallError] = field(default_factory=dict)
    """The servers that failed in the call."""


class ServerPool:
    """Calls a group that is served at several addresses, retries included."""

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
        self.ended = placement.ended
        self._policy, self._events = policy, events
        self._sleep, self._clock = sleep, clock
        self._jitter = random.Random()

    async def complete(self, request: Request) -> Completion:
        """Ask the game's server, or the next ones.

        Raises:
            TransientError: no server answered in as many attempts as the policy allows.
            ServerUnreachable: all of them were given up.
            ProviderRefusal, ContextExceededError, RefusedError: all of them refuse it.
        """
        progress = _Progress()
        while True:
            server, probe = await self._choose(request, progress)
            try:
                completion = await self._servers[server].ask(request, probe=probe)
            except TransientError as error:
                wait, last = self._count_failure(error, server, progress, probe=probe)
                await self._events.failed(request, progress.failed, error, -1.0 if last else wait)
                self._check_reachable()
                if last:
                    raise
                if wait > 0:
                    await self._sleep(wait)
            except CallError as error:
                if not is_refusal(error):
                    raise
                progress.failed += 1
                progress.refused[server] = error
                verdict = self._verdict(request, progress)
                await self._events.failed(request, progress.failed, error, 0.0 if verdict is None else -1.0)
                if verdict is not None:
                    raise verdict from None
            else:
                self._servers[server].health.answered()
                for other, problem in (*progress.refused.items(), *progress.faults.items()):
                    if other != server:
                        self._servers[other].health.took_another(request.sample, problem)
                return completion

    def _count_failure(
        self, error: TransientError, server: int, progress: _Progress, *, probe: bool
    ) -> tuple[float, bool]:
        """Return how long to wait before the next attempt, and whether there is none."""
        progress.failed += 1
        now = self._clock()
        progress.since = now if progress.since is None else progress.since
        if error.status not in ALIVE:
            progress.left.add(server)
        if is_fault(error):
            progress.faults[server] = error
        if probe:
            return 0.0, False  # the server's breaker decides when and how often it is tried
        is_elsewhere = any(other not in progress.left for other in self._available(progress))
        progress.attempts += 1
        wait, last = after_failure(self._policy, error, progress.attempts, now - progress.since, self._jitter)
        return (0.0 if server in progress.left and is_elsewhere else wait), last

    def _not_refused(self, progress: _Progress) -> list[int]:
        return [server for server in range(len(self._servers)) if server not in progress.refused]

    def _available(self, progress: _Progress) -> list[int]:
        """Return the servers that a call may be sent to: those that are up, or else, if none refused it, those left."""
        wanted = self._not_refused(progress)
        up = [server for server in wanted if self._servers[server].is_up]
        return up or [server for server in wanted if not (progress.refused or self._servers[server].breaker.is_open)]

    async def _choose(self, request: Request, progress: _Progress) -> tuple[int, bool]:
        """Return the server to ask, and whether the call is the one that tries it; wait while all are down."""
        while True:
            available = self._available(progress)
            for server in self._not_refused(progress):
                # A call tries a server once: the next try is another call's, unless all wait.
                is_next = not (available and server in progress.left)
                if server not in available and self._servers[server].is_due and is_next:
                    return server, True
            home = self._placement.home(request.sample, lambda server: self._servers[server].is_up)
            if home in available and home not in progress.left:
                return home, False
            if available:
                ordered = [server for server in self._placement.order(request.sample) if server in available]
                fresh = [server for server in ordered if server not in progress.left]
                if not fresh:
                    progress.left.clear()
                return (fresh or ([home] if home in available else ordered))[0], False
            self._check_reachable()
            verdict = self._verdict(request, progress)
            if verdict is not None:
                raise verdict
            await self._wait(progress)

    def _check_reachable(self) -> None:
        """Raise `ServerUnreachable` if all servers were given up."""
        if all(server.breaker.is_given_up for server in self._servers):
            why = "\n".join(f"  {server.breaker.why}" for server in self._servers)
            raise ServerUnreachable(
                f"cannot reach any of {len(self._servers)} servers:\n{why}\n"
                "What was paid for is kept; run the same command again when one is up. Where they are up and these "
                "calls fail all the same, raise retry.breaker.failures."
            )

    def _verdict(self, request: Request, progress: _Progress) -> NipRunError | None:
        """Return the failure of a call that was refused, once no other server is left to ask."""
        others = [self._servers[server] for server in self._not_refused(progress)]
        if not progress.refused or any(not (one.health.is_left or one.breaker.is_given_up) for one in others):
            return None
        unreachable = [one.breaker.why for one in others if one.breaker.is_given_up]
        return judge_refusals(request.group, list(progress.refused.values()), unreachable)

    async def _wait(self, progress: _Progress) -> None:
        """Wait until a server may be tried, or a breaker has changed."""
        breakers = [self._servers[server].breaker for server in self._not_refused(progress)]
        breakers = [breaker for breaker in breakers if breaker.is_open]
        tries = [seconds for breaker in breakers if (seconds := breaker.next_try()) is not None]
        changes = {breaker.change() for breaker in breakers}
        sleeping = [asyncio.ensure_future(self._slept(min(tries)))] if tries else []
        try:
            done, _ = await asyncio.wait({*changes, *sleeping}, return_when=asyncio.FIRST_COMPLETED)
            for sleep in sleeping:
                if sleep in done:
                    sleep.result()  # a run that is to stop raises here
        finally:
            await cancel_all(sleeping)

    async def _slept(self, seconds: float) -> None:
        await self._sleep(seconds)
