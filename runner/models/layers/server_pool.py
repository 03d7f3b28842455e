"""Calls a model group at several servers. Each game stays at one server, and moves if this server is down or refuses.

Failures: if a server does not answer a call or fails, the call immediately goes to the next server. A server whose
circuit breaker is open gets one call at a time as a probe, which does not count as an attempt of the call. When the
server answers, its games return to it. If all servers are down, calls wait while each server gets one probe at a time.
The run ends after the last failed probe of the last server. After a rate limit, a call waits and stays at its server,
unless the server asks for a longer wait than the policy allows.

Refusals: a call that one server refuses is sent once to each of the other servers. If all servers refuse the call, the
result is the same as with a single server. A server that refuses calls which the others accept is excluded (see
`runner.models.layers.server_health`).

Placement: the calls of one agent in one game stay at one server, their home, which caches the common start of their
prompts. Rendezvous hashing (Thaler and Ravishankar, 1998) of datapoint and agent gives the order of preference of the
servers. So all repeats of a datapoint, whose prompts start with the same text, prefer the same server. Adding or
removing a server moves only this server's share of the games. The home of a game is the first server in its order that
has no more than its share of the active games (Mirrokni, Thorup and Zadimoghaddam, 2018, for each agent separately).
"""

from __future__ import annotations

import asyncio
import hashlib
import math
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from runner.base.async_runner import cancel_all
from runner.base.errors import ANSWERS_ARE_SAVED, CallError, NipRunError, ServerUnreachable, TransientError
from runner.models.call_events import CallEvents
from runner.models.interface import Complete, Completion, Request, SampleKey
from runner.models.layers.breaker import ALIVE_STATUSES, Breaker
from runner.models.layers.retry import RetryDecision, after_failure
from runner.models.layers.server_health import ServerHealth, is_fault, is_refusal, judge_refusals
from runner.models.retry_policy import TransientPolicy

MAX_LOAD = 1.05
"""Maximum number of active games of a server, as a multiple of the mean of all servers."""

GameKey = tuple[str, int]
"""Identifies a game: the datapoint's id and the number of the repeat."""


class Placement:
    """Assigns the games of each agent to servers. Servers are identified by their index."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = tuple(server.encode() for server in servers)
        self._homes: dict[GameKey, dict[str, int]] = {}
        """The home of each agent in each active game."""
        self._active_games: dict[str, list[int]] = {}
        """The number of active games at each server, by agent."""

    def preferred_order(self, sample: SampleKey) -> list[int]:
        """Return all servers in the order of preference of a sample's datapoint and agent."""
        key = f"{sample.datapoint}\0{sample.agent}\0".encode("utf-8", "surrogatepass")
        weights = [hashlib.blake2b(key + server, digest_size=8).digest() for server in self._servers]
        return sorted(range(len(weights)), key=weights.__getitem__)

    def home_of(self, sample: SampleKey, is_up: Callable[[int], bool]) -> int:
        """Return the server of this sample's game and agent. A new game is assigned to a server that is up."""
        homes = self._homes.setdefault((sample.datapoint, sample.repeat), {})
        home = homes.get(sample.agent)
        if home is None:
            home = homes[sample.agent] = self._assign(sample, is_up)
        return home

    def _assign(self, sample: SampleKey, is_up: Callable[[int], bool]) -> int:
        active_games = self._active_games.setdefault(sample.agent, [0] * len(self._servers))
        order = self.preferred_order(sample)
        candidates = [server for server in order if is_up(server)] or order
        maximum = math.ceil(MAX_LOAD * (sum(active_games[server] for server in candidates) + 1) / len(candidates))
        # There is always such a server, because the least loaded one is at most at the mean.
        home = next(server for server in candidates if active_games[server] < maximum)
        active_games[home] += 1
        return home

    def release(self, game: GameKey) -> None:
        """Remove a finished game from its servers, if it has any."""
        for agent, home in self._homes.pop(game, {}).items():
            self._active_games[agent][home] -= 1


@dataclass(frozen=True)
class PooledServer:
    """A server of a pool. `complete` makes one attempt of a call to this server."""

    breaker: Breaker
    health: ServerHealth
    complete: Complete

    @property
    def is_up(self) -> bool:
        """Whether the server answers and accepts calls."""
        return not (self.breaker.is_open or self.health.is_excluded)

    @property
    def is_due(self) -> bool:
        """Whether the server is down or excluded, and may get a probe now."""
        return self.breaker.seconds_to_next_probe() == 0.0 if self.breaker.is_open else self.health.is_due

    async def call(self, request: Request, *, probe: bool) -> Completion:
        """Call the server. With `probe`, the call tests a server that is down or excluded."""
        if not probe or self.breaker.is_open:
            return await self.breaker.call_now(self.complete, request, probe=probe)
        with self.health.probing():
            return await self.breaker.call_now(self.complete, request, probe=False)


@dataclass
class _Progress:
    """The progress of one call."""

    attempts: int = 0
    """Number of attempts that count for the retry policy."""
    failed: int = 0
    """Number of all failed attempts."""
    first_failure: float | None = None
    """Time of the first failure."""
    tried: set[int] = field(default_factory=set)
    """Servers that did not answer the call, so that another server should be next."""
    refusals: dict[int, CallError] = field(default_factory=dict)
    """The error of each server that refused the call, in the order of the attempts."""
    faults: dict[int, CallError] = field(default_factory=dict)
    """The error of each server that failed to process the call."""


@dataclass(eq=False)
class ServerPool:
    """Calls a model group at several servers, with retries."""

    servers: Sequence[PooledServer]
    placement: Placement
    policy: TransientPolicy
    events: CallEvents
    sleep: Callable[[float], Awaitable[object]] = asyncio.sleep
    clock: Callable[[], float] = time.monotonic

    def __post_init__(self) -> None:
        self.release = self.placement.release
        self._jitter = random.Random()

    async def complete(self, request: Request) -> Completion:
        """Return the answer of the game's server or, if it fails or refuses, of another server.

        Raises:
            TransientError: no server answered in as many attempts as the policy allows.
            ServerUnreachable: no server can be reached, after the last probe of each.
            ProviderRefusal, ContextExceededError, RefusedError: all servers refuse the call.
        """
        progress = _Progress()
        while True:
            server, probe = await self._choose(request, progress)
            try:
                completion = await self.servers[server].call(request, probe=probe)
            except TransientError as error:
                wait, is_last = self._count_failure(error, server, progress, probe=probe)
                await self.events.on_failure(request, progress.failed, error, -1.0 if is_last else wait)
                self._check_reachable()
                if is_last:
                    raise
                if wait > 0:
                    await self.sleep(wait)
            except CallError as error:
                if not is_refusal(error):
                    raise
                progress.failed += 1
                progress.refusals[server] = error
                refusal = self._refusal_by_all(request, progress)
                await self.events.on_failure(request, progress.failed, error, 0.0 if refusal is None else -1.0)
                if refusal is not None:
                    raise refusal from None
            else:
                self._record_answer(request, server, progress)
                return completion

    def _record_answer(self, request: Request, server: int, progress: _Progress) -> None:
        """Record that a server answered, and that the other servers failed or refused a call that it accepted."""
        self.servers[server].health.record_answer()
        for other_server, error in (*progress.refusals.items(), *progress.faults.items()):
            if other_server != server:
                self.servers[other_server].health.record_accepted_elsewhere(request.sample, error)

    def _count_failure(self, error: TransientError, server: int, progress: _Progress, *, probe: bool) -> RetryDecision:
        """Count a failed attempt, and return what follows it."""
        progress.failed += 1
        now = self.clock()
        progress.first_failure = now if progress.first_failure is None else progress.first_failure
        if error.status not in ALIVE_STATUSES or (error.retry_after or 0.0) > self.policy.total_seconds:
            progress.tried.add(server)
        if is_fault(error):
            progress.faults[server] = error
        if probe:
            return RetryDecision(0.0, is_last=False)  # the server's breaker limits the number of probes
        has_untried_server = any(other_server not in progress.tried for other_server in self._available(progress))
        progress.attempts += 1
        elapsed = now - progress.first_failure
        moves = server in progress.tried and has_untried_server
        return after_failure(self.policy, error, progress.attempts, elapsed, self._jitter, moves=moves)

    def _remaining_servers(self, progress: _Progress) -> list[int]:
        """Return the servers that have not refused the call."""
        return [server for server in range(len(self.servers)) if server not in progress.refusals]

    def _available(self, progress: _Progress) -> list[int]:
        """Return the servers that may receive a call.

        These are all remaining servers that are up. If there are none, and no server has refused the call, these are
        the excluded servers that can be reached.
        """
        servers = self._remaining_servers(progress)
        up = [server for server in servers if self.servers[server].is_up]
        return up or [server for server in servers if not (progress.refusals or self.servers[server].breaker.is_open)]

    async def _choose(self, request: Request, progress: _Progress) -> tuple[int, bool]:
        """Return the server to call, and whether the call is a probe. Waits while all servers are down.

        Raises:
            ServerUnreachable: no server can be reached.
            ProviderRefusal, ContextExceededError, RefusedError: all servers refuse the call.
        """
        while True:
            available = self._available(progress)
            for server in self._remaining_servers(progress):
                # A call probes each server only once, so that the next probe is another call, unless all calls wait.
                may_probe = not (available and server in progress.tried)
                if server not in available and self.servers[server].is_due and may_probe:
                    return server, True
            home = self.placement.home_of(request.sample, lambda server: self.servers[server].is_up)
            if home in available and home not in progress.tried:
                return home, False
            if available:
                ordered = [server for server in self.placement.preferred_order(request.sample) if server in available]
                untried = [server for server in ordered if server not in progress.tried]
                if not untried:
                    progress.tried.clear()
                return (untried or ([home] if home in available else ordered))[0], False
            self._check_reachable()
            refusal = self._refusal_by_all(request, progress)
            if refusal is not None:
                raise refusal
            await self._wait(progress)

    def _check_reachable(self) -> None:
        """Check that some server may still be reached.

        Raises:
            ServerUnreachable: the last probe of every server has failed.
        """
        if all(server.breaker.is_given_up for server in self.servers):
            reasons = "\n".join(f"  {server.breaker.failure_text}" for server in self.servers)
            raise ServerUnreachable(
                f"cannot reach any of {len(self.servers)} servers:\n{reasons}\n"
                f"{ANSWERS_ARE_SAVED}. Correct base_url if an address is wrong, or run the same command again when a "
                "server is up. If the servers are up and only some calls fail, raise retry.breaker.failures."
            )

    def _refusal_by_all(self, request: Request, progress: _Progress) -> NipRunError | None:
        """Return the error of a call that was refused, if no other server is left to try; None otherwise."""
        servers = [self.servers[index] for index in self._remaining_servers(progress)]
        has_other_server = any(not (server.health.is_excluded or server.breaker.is_given_up) for server in servers)
        if not progress.refusals or has_other_server:
            return None
        unreachable = [server.breaker.failure_text for server in servers if server.breaker.is_given_up]
        return judge_refusals(request.group, list(progress.refusals.values()), unreachable)

    async def _wait(self, progress: _Progress) -> None:
        """Wait until a server may get a probe, or the state of a circuit breaker changes."""
        breakers = [self.servers[server].breaker for server in self._remaining_servers(progress)]
        breakers = [breaker for breaker in breakers if breaker.is_open]
        delays = [seconds for breaker in breakers if (seconds := breaker.seconds_to_next_probe()) is not None]
        sleep_tasks = [asyncio.ensure_future(self.sleep(min(delays)))] if delays else []
        waits: set[asyncio.Future[Any]] = {*(breaker.next_change() for breaker in breakers), *sleep_tasks}
        try:
            done, _ = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            for sleep_task in sleep_tasks:
                if sleep_task in done:
                    sleep_task.result()  # raises if the run is stopping
        finally:
            await cancel_all(sleep_tasks)
