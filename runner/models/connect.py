"""Model groups into one way to ask any of them.

The layers, from the outside in: the verdict on refusals, cache, retries with a breaker for each server, budget, limits,
provider. The journal goes around all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

from runner.models.base import Complete, Completion, Request
from runner.models.costs import CallCosts
from runner.models.events import NO_EVENTS, CallEvents
from runner.models.layers.budget import Budget, within_budget
from runner.models.layers.cache import Cache, through_cache
from runner.models.layers.limits import GroupLimit, Sleep, within_limits
from runner.models.layers.malformed import judging_refusals
from runner.models.layers.placement import Placement, Rollout
from runner.models.layers.retry import with_retries
from runner.models.layers.several import Server, SeveralServers
from runner.models.policy import Retry
from runner.models.providers.dummy import DummyModel, examples_behind
from runner.models.providers.openai_body import as_sent
from runner.models.providers.table import ProviderName
from runner.models.servers import Servers, Told, connections_of, server_of
from runner.models.settings import ModelSettings

Close = Callable[[], Awaitable[None]]


class Provider(Protocol):
    """What every provider is: openai, dummy and replay are equals."""

    async def complete(self, request: Request) -> Completion: ...

    async def close(self) -> None: ...


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


class Replayed(NamedTuple):
    """A run whose answers are taken: its folder, and its identity where that is known."""

    run: Path
    identity: str | None


def connect(
    groups: Mapping[str, ModelSettings],
    policy: Retry,
    *,
    concurrency: int = 64,
    replays: Mapping[str, Replayed] | None = None,
    budget: Budget | None = None,
    cache: Cache | None = None,
    providers: Mapping[str, Provider] | None = None,
    events: CallEvents = NO_EVENTS,
    answered: Collection[str] = (),
    labels: Mapping[str, int] | None = None,
    sleep: Sleep = asyncio.sleep,
    servers: Servers | None = None,
) -> Connection:
    """Connect every group but those that `providers` holds, which are connected already.

    `servers` are shared with others who ask at the same time, and closed by whoever made them; their concurrency holds.
    `answered` are the groups that a server has answered before, by the journal. `labels` are those of the datapoints,
    by id: for `dummy` alone, which knows some where it was trained.

    Raises:
        ProviderRefusal: a group's key is missing.
        RunError: a run to replay has no journal.
    """
    shared = servers or Servers(concurrency, sleep)
    live = {group: settings for group, settings in groups.items() if settings.called_live}
    several = {group: settings for group, settings in live.items() if len(settings.addresses) > 1}
    limits = {group: shared.limit(group, one, policy) for group, one in live.items() if group not in several}
    connected = dict(providers or {})
    for group, settings in groups.items():
        if group not in connected and group not in several:
            replayed = (replays or {}).get(group)
            place = _Place(group, settings, shared, limits.get(group), replayed, labels or {})
            connected[group] = CONNECTORS[settings.provider](place)

    attempt = _attempts(shared, CallCosts(groups), budget, events)
    told = _breakers(shared, live, policy, events)
    complete = _live_retried(attempt(connected, limits), groups, policy, events=events, told=told, sleep=sleep)
    at_several = _AtSeveral(shared, policy, attempt, told, events, sleep)
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


Attempt = Callable[[Mapping[str, Provider], Mapping[str, GroupLimit]], Complete]
"""Makes one attempt of a call, of providers and limits by group."""


def _attempts(shared: Servers, costs: CallCosts, budget: Budget | None, events: CallEvents) -> Attempt:
    def attempt(asked: Mapping[str, Provider], limits: Mapping[str, GroupLimit]) -> Complete:
        async def ask(request: Request) -> Completion:
            events.sending(request)
            return await asked[request.group].complete(request)

        limited = within_limits(ask, shared.gate, limits, lambda request: costs.worst_case(request).tokens)
        return limited if budget is None else within_budget(limited, budget, costs)

    return attempt


def _breakers(
    shared: Servers, live: Mapping[str, ModelSettings], policy: Retry, events: CallEvents
) -> Mapping[str, Told]:
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
    attempt: Attempt
    told: Mapping[str, Told]
    events: CallEvents
    sleep: Sleep
    made: list[Provider] = field(default_factory=list)

    def connected(self, group: str, settings: ModelSettings) -> _Pool:
        placement = Placement(list(map(server_of, settings.each_server)))
        each = [self._server(group, one) for one in settings.each_server]
        several = SeveralServers(each, placement, self.policy.transient, self.events, sleep=self.sleep)
        return _Pool(several.complete, placement)

    def _server(self, group: str, settings: ModelSettings) -> Server:
        limit = self.servers.limit(f"{group} at {server_of(settings)}", settings, self.policy)
        provider = CONNECTORS[settings.provider](_Place(group, settings, self.servers, limit, None, {}))
        self.made.append(provider)
        return Server(self.told[server_of(settings)].breaker, self.attempt({group: provider}, {group: limit}))


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
    told: Mapping[str, Told],
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


@dataclass(frozen=True)
class _Place:
    """What a provider is connected for: a model group, with its limit, and the run that it replays."""

    group: str
    settings: ModelSettings
    servers: Servers
    limit: GroupLimit | None
    replayed: Replayed | None
    labels: Mapping[str, int]


def _openai(place: _Place) -> Provider:
    # Here and not above: the client takes 0.4 s to import, and most commands call no model.
    from runner.models.providers.adapters import Adapter, AdapterAt
    from runner.models.providers.openai import OpenAiModel, close_client, make_client

    settings, servers = place.settings, place.servers
    learn = place.limit.learn if place.limit is not None else None
    places, connections = servers.places(settings), servers.concurrency
    # The client holds the connections, and of the settings only where they go, by which key, and for how long.
    client = servers.kept(
        connections_of(settings), lambda: make_client(settings, place.group, connections, places), close_client
    )
    path = servers.adapters.get(settings.name)
    reload = None if path is None else AdapterAt(settings, place.group, Adapter(settings.name, path)).again
    return OpenAiModel(settings, place.group, connections, learn=learn, places=places, client=client, reload=reload)


def _dummy(place: _Place) -> Provider:
    settings = place.settings
    top = (settings.top_logprobs or 0) if settings.logprobs else None
    return DummyModel(examples_behind(settings.model), place.labels, top_logprobs=top)


def _replay(place: _Place) -> Provider:
    from runner.models.providers.replay import ReplayModel

    assert place.replayed is not None, place.group
    return ReplayModel(*place.replayed, sent=lambda request: as_sent(place.settings, request.messages))


CONNECTORS: Mapping[ProviderName, Callable[[_Place], Provider]] = {
    "openai": _openai,
    "dummy": _dummy,
    "replay": _replay,
}
"""How a group of each provider is connected."""
