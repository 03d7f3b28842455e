"""Connects the model groups of a run, so that one function can call each of them.

A call passes these layers, from the outside in: the check of refusals (`runner.models.layers.malformed`), the cache,
retries with a circuit breaker for each server, the budget, the limits, and the provider. The run wraps all of them in
the journal layer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial

from runner.base.async_runner import close_all
from runner.models.admission import Admission, LocalAdmission
from runner.models.call_events import NO_EVENTS, CallEvents
from runner.models.connectors import CONNECTORS, ConnectionTarget, ReplayedRun
from runner.models.costs import CallCosts
from runner.models.interface import Complete, Completion, Provider, Request
from runner.models.layers.cache import Cache, through_cache
from runner.models.layers.limits import Sleep
from runner.models.layers.malformed import judge_malformed
from runner.models.layers.retry import stop_after_losses, with_retries
from runner.models.layers.server_health import ServerHealth, raise_server_refusals
from runner.models.layers.server_pool import GameKey, Placement, PooledServer, ServerPool
from runner.models.retry_policy import Retry
from runner.models.server_states import Close, Servers, server_of
from runner.models.settings import ModelSettings

DEFAULT_CONCURRENCY = 64
"""Maximum number of calls in flight of a connection with its own servers."""


@dataclass(frozen=True)
class Connection:
    """The function that calls any model group of a run, and the functions that close its connections."""

    complete: Complete
    closers: tuple[Close, ...] = ()
    check_groups_answered: Callable[[], None] = lambda: None
    """Raises `ProviderRefusal` if a group had refusals and never an answer. Call this when all games are over."""
    release: Callable[[GameKey], None] = lambda _: None
    """Releases a finished game's place at the servers of pools. Call this once per game."""

    async def close(self) -> None:
        """Close all connections, even if one fails to close, and then raise the first error."""
        await close_all(self.closers)


@dataclass
class ModelConnector:
    """Connects the model groups of a run to their providers, through the layers between them."""

    groups: Mapping[str, ModelSettings]
    retry: Retry
    servers: Servers | None = None
    """The state of servers that other callers also use, and close. None: the connection has its own, and closes it."""
    admission: Admission | None = None
    """Admits calls by the limits and the budget. None: without a budget."""
    events: CallEvents = NO_EVENTS
    replays: Mapping[str, ReplayedRun] = field(default_factory=dict)
    """The run whose answers are replayed, by model group."""
    labels: Mapping[str, int | str] = field(default_factory=dict)
    """The labels of the datapoints by id, which only toy models of `dummy` use."""
    sleep: Sleep = asyncio.sleep

    def __post_init__(self) -> None:
        self._servers = self.servers or Servers(DEFAULT_CONCURRENCY)
        self._admission = self.admission or LocalAdmission(
            CallCosts(self.groups), self._servers, self.retry, None, self.sleep
        )
        self._closers: list[Close] = []
        """The functions that close what this object has opened."""
        self._pools: dict[str, ServerPool] = {}
        self._groups_at_servers = {name: settings for name, settings in self.groups.items() if settings.sends_requests}
        self._breakers = {
            server_of(server): self._servers.breaker(server_of(server), self.retry)
            for settings in self._groups_at_servers.values()
            for server in settings.settings_per_server
        }

    def connect(
        self,
        providers: Mapping[str, Provider] | None = None,
        cache: Cache | None = None,
        answered: Collection[str] = (),
    ) -> Connection:
        """Connect every group, except those in `providers`, which are already connected, and return the connection.

        `answered` are the groups with an answer in the journal. Call this once.

        Raises:
            ProviderRefusal: the API key of a group is missing.
            RunError: a run to replay has no journal.
        """
        complete = stop_after_losses(
            self._connect_all(providers or {}),
            self.retry.breaker.failures,
            {
                group: ", ".join(map(server_of, settings.settings_per_server))
                for group, settings in self._groups_at_servers.items()
                if not settings.batch  # because one failed batch fails all of its calls
            },
        )
        if cache is not None:
            complete = through_cache(complete, cache, self.groups)
        checked = judge_malformed(complete, self.retry.breaker.failures, answered)
        closers = (*self._closers, *(() if self.servers is not None else (self._servers.close,)))
        return Connection(checked.complete, closers, checked.check, self._release)

    def _connect_all(self, providers: Mapping[str, Provider]) -> Complete:
        """Connect every group except those in `providers`, and return the function that calls any group."""
        self._closers.append(self._report_outages())
        self._closers += (provider.close for provider in providers.values())
        complete_by_group = {group: provider.complete for group, provider in providers.items()}
        for group, settings in self.groups.items():
            if group in self._groups_at_servers and len(settings.addresses) > 1:
                self._pools[group] = self._open_pool(group, settings)
            elif group not in complete_by_group:
                complete_by_group[group] = self._open_provider(group, settings, None)
        pools, groups, attempt_once = self._pools, self.groups, self._with_admission(complete_by_group, None)
        call_with_retries = self._with_retries(attempt_once)

        async def call(request: Request) -> Completion:
            pool = pools.get(request.group)
            if pool is not None:
                return await pool.complete(request)
            # Offline providers need no retries: a replay has only recorded failures, and `dummy` never fails.
            return await (call_with_retries if groups[request.group].traits.remote else attempt_once)(request)

        return call

    def _with_retries(self, attempt_once: Complete) -> Complete:
        """Return a function that repeats attempts of a call, with the circuit breaker of the group's server."""
        breaker_of = {group: self._breakers[server_of(settings)] for group, settings in self._groups_at_servers.items()}
        return with_retries(
            attempt_once,
            self.retry.transient,
            self.events,
            has_time_limit=lambda request: not self.groups[request.group].batch,
            breaker_of=lambda request: breaker_of.get(request.group),
            sleep=self.sleep,
        )

    def _release(self, game: GameKey) -> None:
        """Release a finished game's place at the servers of pools."""
        for pool in self._pools.values():
            pool.release(game)

    def _open_provider(self, group: str, settings: ModelSettings, server: str | None) -> Complete:
        """Open the provider of a group, and return the function that calls it. In a pool, `server` is its server."""
        on_headers = self._admission.rate_listener(group, server)
        target = ConnectionTarget(group, settings, self._servers, on_headers, self.replays.get(group), self.labels)
        provider = CONNECTORS[settings.provider](target)
        self._closers.append(provider.close)
        return provider.complete

    def _with_admission(self, complete_by_group: Mapping[str, Complete], server: str | None) -> Complete:
        """Return a function that makes one attempt of a call once it is admitted. In a pool, `server` is its server."""
        events = self.events

        async def call_provider(request: Request) -> Completion:
            events.before_call(request)
            return await complete_by_group[request.group](request)

        return self._admission.wrap(call_provider, server)

    def _open_pool(self, group: str, settings: ModelSettings) -> ServerPool:
        """Open a provider for each server of a group, and return them as a pool."""
        servers = []
        for server_settings in settings.settings_per_server:
            server = server_of(server_settings)
            complete = raise_server_refusals(self._open_provider(group, server_settings, server))
            health = ServerHealth(
                server, group, self.retry.breaker.failures, self.retry.transient,
                on_change=partial(self.events.on_server_status, f"{server} ({group})"),
                on_difference=partial(self.events.on_server_difference, group, server),
            )  # fmt: skip
            attempt_once = self._with_admission({group: complete}, server)
            servers.append(PooledServer(self._breakers[server], health, attempt_once))
        placement = Placement(list(map(server_of, settings.settings_per_server)))
        return ServerPool(servers, placement, self.retry.transient, self.events, sleep=self.sleep)

    def _report_outages(self) -> Close:
        """Report each server that goes down, once even if several groups use it. Return a function that stops this."""
        pooled_servers = {
            server_of(server)
            for settings in self._groups_at_servers.values()
            for server in settings.settings_per_server
            if len(settings.addresses) > 1
        }

        def report(server: str, message: str | None) -> None:
            rerouting = "; its games continue at the other servers" if server in pooled_servers else ""
            self.events.on_server_status(server, None if message is None else message + rerouting)

        removers = [breaker.add_listener(partial(report, server)) for server, breaker in self._breakers.items()]

        async def stop_reports() -> None:
            for remove in removers:
                remove()

        return stop_reports
