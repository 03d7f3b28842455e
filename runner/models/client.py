"""Connect the model groups of a run: one function asks any of them.

The layers, from the outside in: the verdict on refusals, cache, retries with a breaker for each server, budget, limits,
provider. The journal goes around all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from runner.models.admission import Admission, OwnAdmission
from runner.models.call_events import NO_EVENTS, CallEvents
from runner.models.connectors import CONNECTORS, ReplayedRun, ToConnect
from runner.models.costs import CallCosts
from runner.models.interface import Complete, Completion, Provider, Request
from runner.models.layers.breaker import Breaker
from runner.models.layers.budget import Budget
from runner.models.layers.cache import Cache, through_cache
from runner.models.layers.limits import Sleep
from runner.models.layers.malformed import judging_refusals
from runner.models.layers.retry import with_retries
from runner.models.layers.server_health import ServerHealth, raising_refusals
from runner.models.layers.server_pool import Placement, PooledServer, Rollout, ServerPool
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings
from runner.models.shared_servers import Servers, server_of

Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Connection:
    """How every model group of a run is asked, and how the connections are closed."""

    complete: Complete
    closers: tuple[Close, ...] = ()
    check_answered: Callable[[], None] = lambda: None
    """Raises `ProviderRefusal` where a group was refused and never answered; for when all games are over."""
    ended: Callable[[Rollout], None] = lambda _: None
    """Called with each game that is over, which frees its place at one of several servers."""

    async def close(self) -> None:
        """Close all, also where one of them fails; the first failure is raised in the end."""
        closed = await asyncio.gather(*(close() for close in self.closers), return_exceptions=True)
        for failure in closed:
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
    """Connect every group but those that `providers` holds, which are connected already.

    `servers` are shared with others who ask at the same time, and closed by whoever made them; their concurrency holds.
    `answered` are the groups that a server has answered before, by the journal. `labels` are those of the datapoints,
    by id: for `dummy` alone, which knows some where it was trained. `admission` lets calls
    through, where another process holds the budget and the limits.

    Raises:
        ProviderRefusal: a group's key is missing.
        RunError: a run to replay has no journal.
    """
    shared = servers or Servers(concurrency, sleep)
    live = {group: settings for group, settings in groups.items() if settings.called_live}
    admitted = admission or OwnAdmission(costs or CallCosts(groups), shared, policy, budget)
    breakers = {
        server_of(there): shared.breaker(server_of(there), policy)
        for settings in live.values()
        for there in settings.each_server
    }
    stop_listening = _listen(breakers, live, events)
    opener = _ProviderOpener(policy, events, shared, admitted, breakers, replays or {}, labels or {}, sleep)
    opener.opened += (providers or {}).values()

    by_group = {group: provider.complete for group, provider in (providers or {}).items()}
    pools: dict[str, ServerPool] = {}
    for group, settings in groups.items():
        if group in live and len(settings.addresses) > 1:
            pools[group] = opener.open_pool(group, settings)
        elif group not in by_group:
            by_group[group] = opener.open_provider(group, settings, None)

    breaker_of = {group: breakers[server_of(settings)] for group, settings in live.items()}
    once = opener.attempt(by_group, None)
    retried = with_retries(
        once,
        policy.transient,
        events,
        timed=lambda request: not groups[request.group].batch,
        breaker_of=lambda request: breaker_of.get(request.group),
        sleep=sleep,
    )

    async def ask(request: Request) -> Completion:
        pool = pools.get(request.group)
        if pool is not None:
            return await pool.complete(request)
        # A replay's failures are what they are, and the dummy has none.
        return await (retried if groups[request.group].traits.remote else once)(request)

    complete = ask if cache is None else through_cache(ask, cache, groups)
    judged = judging_refusals(complete, policy.breaker.failures, answered)

    async def close() -> None:
        for stop in stop_listening:
            stop()
        if servers is None:
            await shared.close()

    def ended(rollout: Rollout) -> None:
        for pool in pools.values():
            pool.ended(rollout)

    return Connection(judged.complete, (close, *(provider.close for provider in opener.opened)), judged.check, ended)


@dataclass
class _ProviderOpener:
    """Opens providers, and puts around each the layers of one attempt of a call."""

    policy: Retry
    events: CallEvents
    servers: Servers
    admission: Admission
    breakers: Mapping[str, Breaker]
    replays: Mapping[str, ReplayedRun]
    labels: Mapping[str, int]
    sleep: Sleep
    opened: list[Provider] = field(default_factory=list)
    """The providers that somebody has to close."""

    def open_provider(self, group: str, settings: ModelSettings, server: str | None) -> Complete:
        learn = self.admission.learns(group, server)
        parts = ToConnect(group, settings, self.servers, learn, self.replays.get(group), self.labels)
        provider = CONNECTORS[settings.provider](parts)
        self.opened.append(provider)
        return provider.complete

    def attempt(self, by_group: Mapping[str, Complete], server: str | None) -> Complete:
        """Return what makes one attempt of a call, at one of several servers or the only one."""
        events = self.events

        async def ask(request: Request) -> Completion:
            events.sending(request)
            return await by_group[request.group](request)

        return self.admission.around(ask, server)

    def open_pool(self, group: str, settings: ModelSettings) -> ServerPool:
        """Open a provider for each server of a group."""
        pooled = []
        for settings_there in settings.each_server:
            server = server_of(settings_there)
            complete = raising_refusals(self.open_provider(group, settings_there, server))
            health = ServerHealth(
                server, group, self.policy.breaker.failures, self.policy.transient,
                tell=partial(self.events.server_down, f"{server} ({group})"),
                unlike=partial(self.events.unlike, group, server),
            )  # fmt: skip
            pooled.append(PooledServer(self.breakers[server], health, self.attempt({group: complete}, server)))
        placement = Placement(list(map(server_of, settings.each_server)))
        return ServerPool(pooled, placement, self.policy.transient, self.events, sleep=self.sleep)


def _listen(
    breakers: Mapping[str, Breaker], live: Mapping[str, ModelSettings], events: CallEvents
) -> list[Callable[[], None]]:
    """Report each server that is down once, however many groups ask it; return how to stop that."""
    pooled = {server_of(there) for settings in live.values() for there in settings.each_server[1:]}
    pooled |= {server_of(settings) for settings in live.values() if len(settings.addresses) > 1}

    def report(server: str, message: str | None) -> None:
        goes_on = "; its games go to the other servers meanwhile" if server in pooled else ""
        events.server_down(server, None if message is None else message + goes_on)

    return [breaker.listen(partial(report, server)) for server, breaker in breakers.items()]
