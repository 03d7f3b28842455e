"""What all who ask at the same time share of the servers: calls in flight, limits, breakers, connections.

One run has it to itself. The points of a sweep share one, so that a server sees no more of all of them together than it
would see of one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

from runner.models.api_keys import same_server
from runner.models.layers.breaker import Breaker
from runner.models.layers.limits import FairSemaphore, GroupLimit, Sleep
from runner.models.providers.body_limits import BodySlots
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings

T = TypeVar("T")

Close = Callable[[], Awaitable[None]]


class Servers:
    """At most `concurrency` calls at once, whoever asks; one limit a model, one breaker a server."""

    def __init__(self, concurrency: int, sleep: Sleep = asyncio.sleep) -> None:
        self.concurrency = concurrency
        self.gate = FairSemaphore(concurrency)
        self.adapters: Mapping[str, str] = {}
        """Models that are LoRA adapters, each with the path that servers load it from."""
        self._sleep = sleep
        self._limits: dict[Hashable, GroupLimit] = {}
        self._breakers: dict[Hashable, Breaker] = {}
        self._places: dict[str, BodySlots] = {}
        self._kept: dict[Hashable, tuple[Any, Close]] = {}

    def limit(self, group: str, settings: ModelSettings, policy: Retry) -> GroupLimit:
        """The limit of a model on its server, by the key that it is asked with; logged by the group that came first."""
        rates = settings.requests_per_minute, settings.tokens_per_minute
        most_hold = policy.transient.total_seconds
        model = (server_of(settings), settings.key_variable, settings.model, rates, most_hold)
        if model not in self._limits:
            self._limits[model] = GroupLimit(
                group,
                self.concurrency,
                requests_per_minute=settings.requests_per_minute,
                tokens_per_minute=settings.tokens_per_minute,
                most_hold=most_hold,
                sleep=self._sleep,
            )
        return self._limits[model]

    def breaker(self, server: str, policy: Retry) -> Breaker:
        """Return the breaker of a server."""
        key = (server, policy.breaker, policy.transient)
        if key not in self._breakers:
            self._breakers[key] = Breaker(server, policy.breaker, policy.transient, sleep=self._sleep)
        return self._breakers[key]

    def places(self, settings: ModelSettings) -> BodySlots:
        """The places for the long bodies of a server."""
        return self._places.setdefault(server_of(settings), BodySlots(self.concurrency))

    def kept(self, key: Hashable, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> T:
        """What was made for this key, or is made now, and is closed with all the rest: the connections to a server."""
        if key not in self._kept:
            made = make()
            self._kept[key] = made, lambda: close(made)
        return cast("T", self._kept[key][0])

    async def close(self) -> None:
        """Close all connections, also where one of them fails; the first failure is raised in the end."""
        kept, self._kept = list(self._kept.values()), {}
        closed = await asyncio.gather(*(close() for _, close in kept), return_exceptions=True)
        for failure in closed:
            if isinstance(failure, BaseException):
                raise failure


def server_of(settings: ModelSettings) -> str:
    """The server that a group asks, by one name however its address is written; of several the first."""
    return same_server(settings.server_url)


def connections_of(settings: ModelSettings) -> Hashable:
    """What connections depend on: groups for which this is equal share them."""
    headers = tuple(sorted(settings.header_variables.items()))
    return settings.provider, settings.address, settings.key_variable, settings.timeout, headers
