"""The state of model servers that several runs share: calls in flight, limits, circuit breakers and connections.

The points of a sweep share this state, so that together they cause no more load than a single run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Mapping
from typing import Any, TypeVar, cast

from runner.base.async_runner import close_all
from runner.models.api_keys import normalize_url
from runner.models.layers.breaker import Breaker
from runner.models.layers.limits import FairSemaphore, GroupLimit
from runner.models.providers.body_limits import BodySlots
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings

T = TypeVar("T")

Close = Callable[[], Awaitable[None]]


class Servers:
    """The shared state, with at most `concurrency` calls in flight, a limit per model, and a breaker per server."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.semaphore = FairSemaphore(concurrency)
        self.adapters: Mapping[str, str] = {}
        """The path of each LoRA adapter, as servers see it, by model name."""
        self._limits: dict[Hashable, GroupLimit] = {}
        self._breakers: dict[Hashable, Breaker] = {}
        self._body_slots: dict[str, BodySlots] = {}
        self._connections: dict[Hashable, tuple[Any, Close]] = {}

    def limit(self, group: str, settings: ModelSettings, retry: Retry) -> GroupLimit:
        """Return the limit of a model group. Groups with the same server, API key, model and rates share their limit.

        Log lines name the first group with this limit.
        """
        rates = settings.requests_per_minute, settings.tokens_per_minute
        max_pause = retry.transient.total_seconds
        key = (server_of(settings), settings.key_variable, settings.model, rates, max_pause)
        if key not in self._limits:
            self._limits[key] = GroupLimit(
                group,
                self.concurrency,
                requests_per_minute=settings.requests_per_minute,
                tokens_per_minute=settings.tokens_per_minute,
                max_pause=max_pause,
            )
        return self._limits[key]

    def breaker(self, server: str, retry: Retry) -> Breaker:
        """Return the circuit breaker of a server."""
        key = (server, retry.breaker, retry.transient)
        if key not in self._breakers:
            self._breakers[key] = Breaker(server, retry.breaker, retry.transient)
        return self._breakers[key]

    def body_slots(self, settings: ModelSettings) -> BodySlots:
        """Return the slots for long response bodies of a server."""
        return self._body_slots.setdefault(server_of(settings), BodySlots(self.concurrency))

    def shared_client(self, key: Hashable, make: Callable[[], T], close: Callable[[T], Awaitable[None]]) -> T:
        """Return the client stored for `key`; if there is none, create and store one with `make`.

        `close` is called with the client when this object is closed.
        """
        if key not in self._connections:
            client = make()
            self._connections[key] = client, lambda: close(client)
        return cast("T", self._connections[key][0])

    async def close(self) -> None:
        """Close all connections, even if one fails to close, and then raise the first error."""
        connections, self._connections = self._connections.values(), {}
        await close_all(close for _, close in connections)


def server_of(settings: ModelSettings) -> str:
    """Return the normalized address of a group's first server."""
    return normalize_url(settings.server_url)


def connection_key(settings: ModelSettings) -> Hashable:
    """Return a key for the connections of a group. Groups with equal keys share connections."""
    headers = tuple(sorted(settings.header_variables.items()))
    return settings.provider, settings.address, settings.key_variable, settings.timeout, headers
