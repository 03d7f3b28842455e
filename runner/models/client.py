"""Connects the model groups of a run, so that one function can call each of them.

A call passes these layers, from the outside in: the check of refusals, the cache, retries with a circuit breaker for
each server, the budget, the limits, and the provider. The caller wraps all of them in the journal layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from runner.models.admission import Admission, LocalAdmission
from runner.models.call_events import NO_EVENTS, CallEvents
from runner.models.connectors import CONNECTORS, ConnectionTarget, ReplayedRun
from runner.models.costs import CallCosts
from runner.models.interface import Complete, Completion, Provider, Request
from runner.models.layers.breaker import Breaker
from runner.models.layers.budget import Budget
from runner.models.layers.cache import Cache, through_cache
from runner.models.layers.limits import Sleep
from runner.models.layers.malformed import judge_malformed
from runner.models.layers.retry import with_retries
from runner.models.layers.server_health import ServerHealth, raise_server_refusals
from runner.models.layers.server_pool import Placement, PooledServer, Rollout, ServerPool
from runner.models.retry_policy import Retry
from runner.models.server_states import Servers, server_of
from runner.models.settings import ModelSettings

Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Connection:
    """The function that calls any model group of a run, and the functions that close its connections."""

    complete: Complete
    closers: tuple[Close, ...] = ()
    check_answered: Callable[[], None] = lambda: None
    """Raises `ProviderRefusal` if a group had refusals and never an answer. Call this when all games are over."""
    release: Callable[[Rollout], None] = lambda _: None
    """Releases a finished game's place at the servers of pools. Call this once per game."""

    async def close(self) -> None:
        """Close all connections, even if one fails to close, and then raise the first error."""
        outcomes = await asyncio.gather(*(close() for close in self.closers), return_exceptions=True)
        for failure in outcomes:
            if isinstance(failure, BaseException):
                raise failure


def connect(
    groups: Mapping[str, ModelSettings],
    policy: Retry,
    *,
    concurrency: int = 64,
    replays: Mapping[str, ReplayedRun] | None = None,
    budget: Budget | None = None,
    costs: CallCosts | None = None,
    cache: Cache | None = None,
    providers: Mapping[str, Provider] | None = None,
    events: CallEvents = NO_EVENTS,
    answered: Collection[str] = (),
    labels: Mapping[str, int] | None = None,
    sleep: Sleep = asyncio.sleep,
    servers: Servers | None = None,
    admission: Admission | None = None,
) -> Connection:
    """Connect every group except those in `providers`, which are already connected, and return the connection.

    `servers` are shared with other callers and closed by their creator; their concurrency applies. `answered` are the
    groups with an answer in the journal. `labels` has the labels of the datapoints by id, which only `dummy` uses, and
    only as a trained model. `admission` admits calls if another process enforces the budget and the limits.

    Raises:
        ProviderRefusal: the API key of a group is missing.
        RunError: a run to replay has no journal.
    """
    shared = servers or Servers(concurrency, sleep)
    live_groups = {group: settings for group, settings in groups.items() if settings.is_called_live}
    admitted = admission or LocalAdmission(costs or CallCosts(groups), shared, policy, budget)
    breakers = {
        server_of(server): shared.breaker(server_of(server), policy)
        for settings in live_groups.values()
        for server in settings.each_server
    }
    stop_listening = _listen(breakers, live_groups, events)
    opener = _ProviderOpener(policy, events, shared, admitted, breakers, replays or {}, labels or {}, sleep)
    opener.opened += (providers or {}).values()

    by_group = {group: provider.complete for group, provider in (providers or {}).items()}
    pools: dict[str, ServerPool] = {}
    for group, settings in groups.items():
        if group in live_groups and len(settings.addresses) > 1:
            pools[group] = opener.open_pool(group, settings)
        elif group not in by_group:
            by_group[group] = opener.open_provider(group, settings, None)

    breaker_of = {group: breakers[server_of(settings)] for group, settings in live_groups.items()}
    attempt_once = opener.attempt(by_group, None)
    ask_with_retries = with_retries(
        attempt_once,
        policy.transient,
        events,
        timed=lambda request: not groups[request.group].batch,
        breaker_of=lambda request: breaker_of.get(request.group),
        sleep=sleep,
    )

    async def ask_any(request: Request) -> Completion:
        pool = pools.get(request.group)
        if pool is not None:
            return await pool.complete(request)
        # Offline providers need no retries: a replay has only recorded failures, and `dummy` never fails.
        return await (ask_with_retries if groups[request.group].traits.remote else attempt_once)(request)

    complete = ask_any if cache is None else through_cache(ask_any, cache, groups)
    judge = judge_malformed(complete, policy.breaker.failures, answered)

    async def close() -> None:
        for stop in stop_listening:
            stop()
        if servers is None:
            await shared.close()

    def release(rollout: Rollout) -> None:
        for pool in pools.values():
            pool.release(rollout)

    return Connection(judge.complete, (close, *(provider.close for provider in opener.opened)), judge.check, release)


@dataclass
class _ProviderOpener:
    """Opens providers, and wraps them in the layers for one attempt of a call."""

    policy: Retry
    events: CallEvents
    servers: Servers
    admission: Admission
    breakers: Mapping[str, Breaker]
    replays: Mapping[str, ReplayedRun]
    labels: Mapping[str, int]
    sleep: Sleep
    opened: list[Provider] = field(default_factory=list)
    """The providers that the connection must close."""

    def open_provider(self, group: str, settings: ModelSettings, server: str | None) -> Complete:
        """Open the provider of a group, and return the function that calls it. `server`: its server in a pool."""
        learn = self.admission.rate_listener(group, server)
        parts = ConnectionTarget(group, settings, self.servers, learn, self.replays.get(group), self.labels)
        provider = CONNECTORS[settings.provider](parts)
        self.opened.append(provider)
        return provider.complete

    def attempt(self, by_group: Mapping[str, Complete], server: str | None) -> Complete:
        """Return the function that makes one attempt of a call. `server` is the server in a pool, if any."""
        events = self.events

        async def ask(request: Request) -> Completion:
            events.sending(request)
            return await by_group[request.group](request)

        return self.admission.wrap(ask, server)

    def open_pool(self, group: str, settings: ModelSettings) -> ServerPool:
        """Open a provider for each server of a group, and return them as a pool."""
        servers = []
        for server_settings in settings.each_server:
            server = server_of(server_settings)
            complete = raise_server_refusals(self.open_provider(group, server_settings, server))
            health = ServerHealth(
                server, group, self.policy.breaker.failures, self.policy.transient,
                on_change=partial(self.events.server_down, f"{server} ({group})"),
                unlike=partial(self.events.unlike, group, server),
            )  # fmt: skip
            servers.append(PooledServer(self.breakers[server], health, self.attempt({group: complete}, server)))
        placement = Placement(list(map(server_of, settings.each_server)))
        return ServerPool(servers, placement, self.policy.transient, self.events, sleep=self.sleep)


def _listen(
    breakers: Mapping[str, Breaker], live: Mapping[str, ModelSettings], events: CallEvents
) -> list[Callable[[], None]]:
    """Report the state of each server once, even if several groups use it. Return functions that stop the reports."""
    pooled = {server_of(extra) for settings in live.values() for extra in settings.each_server[1:]}
    pooled |= {server_of(settings) for settings in live.values() if len(settings.addresses) > 1}

    def report(server: str, message: str | None) -> None:
        rerouting = "; its games continue at the other servers" if server in pooled else ""
        events.server_down(server, None if message is None else message + rerouting)

    return [breaker.listen(partial(report, server)) for server, breaker in breakers.items()]
