"""Model groups into one way to ask any of them.

The layers, from the outside in: the verdict on refusals, cache, retries with a breaker for each server, budget, limits,
provider. The journal goes around all of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from runner.models.base import Complete, Completion, Request
from runner.models.costs import CallCosts
from runner.models.events import NO_EVENTS, CallEvents
from runner.models.layers.budget import Budget, within_budget
from runner.models.layers.cache import Cache, through_cache
from runner.models.layers.limits import GroupLimit, Sleep, within_limits
from runner.models.layers.malformed import judging_refusals
from runner.models.layers.retry import with_retries
from runner.models.policy import Retry
from runner.models.providers.dummy import DummyModel, examples_behind
from runner.models.providers.openai_body import as_sent
from runner.models.providers.table import ProviderName
from runner.models.servers import Servers, Told, connections_of, server_of
from runner.models.settings import ModelSettings

Close = Callable[[], Awaitable[None]]

Learn = Callable[[Mapping[str, str]], None]
"""Is told the headers of an answer."""


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

    async def close(self) -> None:
        """Close all, also where one of them fails; the first failure is raised in the end."""
        closed = await asyncio.gather(*(close() for close in self.closers), return_exceptions=True)
        for failure in closed:
            if isinstance(failure, BaseException):
                raise failure


class Permits(Protocol):
    """Where others hold the budget and the limits: asks them for each call, and tells them how it ended."""

    def around(self, complete: Complete) -> Complete: ...

    def learn(self, group: str, headers: Mapping[str, str]) -> None: ...


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
    permits: Permits | None = None,
) -> Connection:
    """Connect every group but those that `providers` holds, which are connected already.

    `servers` are shared with others who ask at the same time, and closed by whoever made them; their concurrency holds.
    `answered` are the groups that a server has answered before, by the journal. `labels` are those of the datapoints,
    by id: for `dummy` alone, which knows some where it was trained. `permits` stand in the place of the budget and the
    limits.

    Raises:
        ProviderRefusal: a group's key is missing.
        RunError: a run to replay has no journal.
    """
    shared = servers or Servers(concurrency, sleep)
    live = {group: settings for group, settings in groups.items() if settings.called_live}
    limits = {} if permits else {group: shared.limit(group, settings, policy) for group, settings in live.items()}
    connected = dict(providers or {})
    for group, settings in groups.items():
        if group not in connected:
            replayed = (replays or {}).get(group)
            place = _Place(group, settings, shared, _learning(group, limits, permits), replayed, labels or {})
            connected[group] = CONNECTORS[settings.provider](place)

    costs = CallCosts(groups)

    async def ask(request: Request) -> Completion:
        events.sending(request)
        return await connected[request.group].complete(request)

    if permits is not None:
        complete = permits.around(ask)
    else:
        complete = within_limits(ask, shared.gate, limits, lambda request: costs.worst_case(request).tokens)
    if budget is not None:
        complete = within_budget(complete, budget, costs)
    # By server, so that each is told of once, however many groups ask it.
    told = {one: shared.breaker(one, policy, events.server_down) for one in set(map(server_of, live.values()))}
    complete = _live_retried(complete, groups, policy, events=events, told=told, sleep=sleep)
    if cache is not None:
        complete = through_cache(complete, cache, groups)
    judged = judging_refusals(complete, policy.breaker.failures, answered)

    async def close() -> None:
        for one in told.values():
            one.end()
        if servers is None:
            await shared.close()

    closers = (close, *(provider.close for provider in connected.values()))
    return Connection(judged.complete, closers, judged.check)


def _learning(group: str, limits: Mapping[str, GroupLimit], permits: Permits | None) -> Learn | None:
    """What is told the headers of a group's answers."""
    if permits is not None:
        return partial(permits.learn, group)
    return limits[group].learn if group in limits else None


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
    """What a provider is connected for: a model group, who learns of its rates, and the run that it replays."""

    group: str
    settings: ModelSettings
    servers: Servers
    learn: Learn | None
    replayed: Replayed | None
    labels: Mapping[str, int]


def _openai(place: _Place) -> Provider:
    # Here and not above: the client takes 0.4 s to import, and most commands call no model.
    from runner.models.providers.openai import OpenAiModel, close_client, make_client

    settings, servers = place.settings, place.servers
    places, connections = servers.places(settings), servers.concurrency
    # The client holds the connections, and of the settings only where they go, by which key, and for how long.
    client = servers.kept(
        connections_of(settings), lambda: make_client(settings, place.group, connections, places), close_client
    )
    return OpenAiModel(settings, place.group, connections, learn=place.learn, places=places, client=client)


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
