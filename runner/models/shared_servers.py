"""State of the model servers that all callers share: calls in flight, limits, breakers, connections.

A single run has its own. The points of a sweep share one, so that together they cause no more load than one of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

from runner.models.api_keys import normalize_url
from runner.models.layers.breaker import Breaker
from runner.models.layers.limits import FairSemaphore, GroupLimit, Sleep
from runner.models.providers.body_limits import BodySlots
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings

T = TypeVar("T")

Close = Callable[[], Awaitable[None]]


class Servers:
    """The shared state: at most `concurrency` calls in flight, one limit per model, one breaker per server."""

    def __init__(self, concurrency: int, sleep: Sleep = asyncio.sleep) -> None:
        self.concurrency = concurrency
        self.gate = FairSemaphore(concurrency)
        self.adapters: Mapping[str, str] = {}
        """The models that are LoRA adapters, each with the path that servers load it from."""
        self._sleep = sleep
        self._limits: dict[Hashable, GroupLimit] = {}
        self._breakers: dict[Hashable, Breaker] = {}
        self._body_slots: dict[str, BodySlots] = {}
        self._connections: dict[Hashable, tuple[Any, Close]] = {}

    def limit(self, group: str, settings: ModelSettings, policy: Retry) -> GroupLimit:
        """Return the limit of a model at its server and key. Log lines name the first group that asked for it."""
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

    def body_slots(self, settings: ModelSettings) -> BodySlots:
        """Return the slots for long response bodies of a server."""
        return self._body_slots.setdefault(server_of(settings), BodySlots(self.concurrency))

    def shared(self, key: Hashable, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> T:
        """Return the value stored for `key`, or create and store it. `close` is called on it when this is closed."""
        if key not in self._connections:
            value = make()
            self._connections[key] = value, lambda: close(value)
        return cast("T", self._connections[key][0])

    async def close(self) -> None:
        """Close all connections, even if one fails to close, then raise the first failure."""
        connections, self._connections = list(self._connections.values()), {}
        outcomes = await asyncio.gather(*(close() for _, close in connections), return_exceptions=True)
        for failure in outcomes:
            if isinstance(failure, BaseException):
                raise failure


def server_of(settings: ModelSettings) -> str:
    """Return the normalized address of a group's first server."""
    return normalize_url(settings.server_url)


def connections_of(settings: ModelSettings) -> Hashable:
    """Return what connections depend on. Groups with equal values share them."""
    headers = tuple(sorted(settings.header_variables.items()))
    return settings.provider, settings.address, settings.key_variable, settings.timeout, headers
