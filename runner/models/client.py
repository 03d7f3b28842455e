"""Model groups into one way to ask any of them.

The layers, from the outside in: the verdict on refusals, cache, retries with a breaker for each server, budget, limits,
provider. The journal goes around all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field

from runner.models.admission import Admission, OwnAdmission
from runner.models.call_events import NO_EVENTS, CallEvents
from runner.models.connectors import CONNECTORS, ReplayedRun, ToConnect
from runner.models.costs import CallCosts
from runner.models.interface import Complete, Completion, Provider, Request
from runner.models.layers.budget import Budget
from runner.models.layers.cache import Cache, through_cache
from runner.models.layers.limits import Sleep
from runner.models.layers.malformed import judging_refusals
from runner.models.layers.placement import Placement, Rollout
from runner.models.layers.retry import with_retries
from runner.models.layers.server_health import OneOfSeveral, ServerHealth
from runner.models.layers.server_pool import PooledServer, SeveralServers
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings
from runner.models.shared_servers import Servers, SharedBreaker, server_of

Close = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class Connection:
    """How every model group of a run is asked, and how the connections are closed."""

    complete: Complete
    closers: tuple[Close, ...] = ()
    check_answered: Callable[[], None] = lambda: None
    """Raises `ProviderRefusal` where a group was refused and never answered; for when all games are over."""
    ended: Callable[[Rollout], None] = lambda _: None
    """Told of each game that is over: its place at one of several servers is free."""

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
    several = {group: settings for group, settings in live.items() if len(settings.addresses) > 1}
    admitted = admission or OwnAdmission(costs or CallCosts(groups), shared, policy, budget)
    connected = dict(providers or {})
    for group, settings in groups.items():
        if group not in connected and group not in several:
            replayed = (replays or {}).get(group)
            to_connect = ToConnect(group, settings, shared, admitted.learns(group, None), replayed, labels or {})
            connected[group] = CONNECTORS[settings.provider](to_connect)

    attempt = _attempts(admitted, events)
    told = _breakers(shared, live, policy, events)
    complete = _live_retried(attempt(connected, None), groups, policy, events=events, told=told, sleep=sleep)
    at_several = _AtSeveral(shared, policy, admitted, attempt, told, events, sleep)
    pools = {group: at_several.connected(group, settings) for group, settings in several.items()}
    if pools:
        complete = _or_several(complete, pools)
    if cache is not None:
        complete = through_cache(complete, cache, groups)
    judged = judging_refusals(complete, policy.breaker.failures, answered)

    async def close() -> None:
        for one in told.values():
            one.end()
        if servers is None:
            await shared.close()

    def ended(rollout: Rollout) -> None:
        for pool in pools.values():
            pool.placement.ended(rollout)

    made = (*connected.values(), *at_several.made)
    return Connection(judged.complete, (close, *(provider.close for provider in made)), judged.check, ended)


Attempt = Callable[[Mapping[str, Provider], str | None], Complete]
"""Makes one attempt of a call, of the providers by group, at one of several servers or the only one."""


def _attempts(admitted: Admission, events: CallEvents) -> Attempt:
    def attempt(asked: Mapping[str, Provider], server: str | None) -> Complete:
        async def ask(request: Request) -> Completion:
            events.sending(request)
            return await asked[request.group].complete(request)

        return admitted.around(ask, server)

    return attempt


def _breakers(
    shared: Servers, live: Mapping[str, ModelSettings], policy: Retry, events: CallEvents
) -> Mapping[str, SharedBreaker]:
    """The breakers by server, so that each is told of once, however many groups ask it."""
    one_of_several: dict[str, bool] = {}
    for settings in live.values():
        for server in map(server_of, settings.each_server):
            one_of_several[server] = one_of_several.get(server, False) or len(settings.addresses) > 1

    def down(server: str, message: str | None) -> None:
        goes_on = "; its games go to the other servers meanwhile" if one_of_several[server] else ""
        events.server_down(server, None if message is None else message + goes_on)

    return {server: shared.breaker(server, policy, down) for server in one_of_several}


@dataclass(frozen=True)
class _Pool:
    """A group at several servers, and which game is at which."""

    complete: Complete
    placement: Placement


@dataclass(frozen=True)
class _AtSeveral:
    """Connects groups at several servers, each with a limit of its own."""

    servers: Servers
    policy: Retry
    admitted: Admission
    attempt: Attempt
    told: Mapping[str, SharedBreaker]
    events: CallEvents
    sleep: Sleep
    made: list[Provider] = field(default_factory=list)

    def connected(self, group: str, settings: ModelSettings) -> _Pool:
        placement = Placement(list(map(server_of, settings.each_server)))
        each = [self._server(group, one) for one in settings.each_server]
        several = SeveralServers(each, placement, self.policy.transient, self.events, sleep=self.sleep)
        return _Pool(several.complete, placement)

    def _server(self, group: str, settings: ModelSettings) -> PooledServer:
        server = server_of(settings)
        learn = self.admitted.learns(group, server)
        provider = CONNECTORS[settings.provider](ToConnect(group, settings, self.servers, learn, None, {}))
        self.made.append(provider)
        events = self.events
        standing = ServerHealth(
            server, group, self.policy.breaker.failures, self.policy.transient,
            tell=lambda message: events.server_down(f"{server} ({group})", message),
            unlike=lambda calls, said: events.unlike(group, server, calls, said),
        )  # fmt: skip
        return PooledServer(self.told[server].breaker, standing, self.attempt({group: OneOfSeveral(provider)}, server))


def _or_several(complete: Complete, pools: Mapping[str, _Pool]) -> Complete:
    async def asked(request: Request) -> Completion:
        pool = pools.get(request.group)
        return await (complete if pool is None else pool.complete)(request)

    return asked


def _live_retried(
    complete: Complete,
    groups: Mapping[str, ModelSettings],
    policy: Retry,
    *,
    events: CallEvents,
    told: Mapping[str, SharedBreaker],
    sleep: Sleep,
) -> Complete:
    """Retries where there is a network: a replay's failures are what they are, the dummy has none."""
    retried = with_retries(
        complete,
        policy.transient,
        events,
        timed=lambda request: not groups[request.group].batch,
        breaker_of=lambda request: (
            told[server_of(groups[request.group])].breaker if groups[request.group].called_live else None
        ),
        sleep=sleep,
    )

    async def complete_by_provider(request: Request) -> Completion:
        remote = groups[request.group].traits.remote
        return await (retried if remote else complete)(request)

    return complete_by_provider
