"""Admits calls when the budget and the rate limits allow them, in this process or in another one.

`runner.models.client` sends every call through it. Worker processes ask the process that manages the run's budget.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from runner.models.costs import CallCosts
from runner.models.interface import Complete
from runner.models.layers.budget import Budget, within_budget
from runner.models.layers.limits import GroupLimit, Sleep, within_limits
from runner.models.retry_policy import Retry
from runner.models.server_states import Servers, server_of

RateListener = Callable[[Mapping[str, str]], None]
"""Called with the headers of each answer, which may report rate limits."""


class Admission(Protocol):
    """Admits a call once the budget and the limits allow it.

    `server` is a server of a pool, which has its own limits; None stands for the only server of a group.
    """

    def wrap(self, complete: Complete, server: str | None) -> Complete:
        """Return a function that waits until a call is admitted, and then makes one attempt of it with `complete`."""
        ...

    def rate_listener(self, group: str, server: str | None) -> RateListener | None:
        """Return the function that receives a server's headers; None if the group has no limits."""
        ...


class LocalAdmission:
    """Admits calls by the limits and the budget of this process.

    A call first waits for the limits, with `sleep`, so that waiting calls reserve nothing in the budget.
    """

    def __init__(
        self, costs: CallCosts, servers: Servers, retry: Retry, budget: Budget | None, sleep: Sleep = asyncio.sleep
    ) -> None:
        self._costs, self._semaphore, self._budget, self._sleep = costs, servers.semaphore, budget, sleep
        self._limits: dict[str | None, dict[str, GroupLimit]] = {None: {}}
        for group, settings in costs.groups.items():
            has_pool = len(settings.addresses) > 1
            for server_settings in settings.settings_per_server if settings.sends_requests else ():
                server = server_of(server_settings) if has_pool else None
                name = f"{group} at {server}" if has_pool else group
                self._limits.setdefault(server, {})[group] = servers.limit(name, server_settings, retry)

    @property
    def servers(self) -> Collection[str | None]:
        """The servers that have limits; None stands for all groups with one server."""
        return self._limits.keys()

    def wrap(self, complete: Complete, server: str | None) -> Complete:
        limits, costs = self._limits[server], self._costs
        budgeted = complete if self._budget is None else within_budget(complete, self._budget, costs)
        return within_limits(
            budgeted, self._semaphore, limits, lambda request: costs.worst_case(request).tokens, self._sleep
        )

    def rate_listener(self, group: str, server: str | None) -> RateListener | None:
        limit = self._limits[server].get(group)
        return None if limit is None else limit.learn_rates
