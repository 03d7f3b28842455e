"""What lets calls through: the budget, and the limits of the servers; here, or where another process holds them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Protocol

from runner.models.costs import CallCosts
from runner.models.interface import Complete
from runner.models.layers.budget import Budget, within_budget
from runner.models.layers.limits import GroupLimit, within_limits
from runner.models.retry_policy import Retry
from runner.models.shared_servers import Servers, server_of

Learn = Callable[[Mapping[str, str]], None]
"""Is told the headers of an answer."""


class Admission(Protocol):
    """Lets a call through once budget and limits allow it.

    `server` is one of several that a group is at, each of which has a limit of its own; None: the group's only one.
    """

    def around(self, complete: Complete, server: str | None) -> Complete:
        """`complete` for one attempt of one call."""
        ...

    def learns(self, group: str, server: str | None) -> Learn | None:
        """What is told of the rates that a server says it allows; None where none are kept."""
        ...


class OwnAdmission:
    """The budget and the limits of this process."""

    def __init__(self, costs: CallCosts, servers: Servers, policy: Retry, budget: Budget | None) -> None:
        self._costs, self._gate, self._budget = costs, servers.gate, budget
        self._limits: dict[str | None, dict[str, GroupLimit]] = {None: {}}
        for group, settings in costs.groups.items():
            several = len(settings.addresses) > 1
            for one in settings.each_server if settings.called_live else ():
                server = server_of(one) if several else None
                name = f"{group} at {server}" if several else group
                self._limits.setdefault(server, {})[group] = servers.limit(name, one, policy)

    @property
    def servers(self) -> Collection[str | None]:
        """What a call may be let through to."""
        return self._limits.keys()

    def around(self, complete: Complete, server: str | None) -> Complete:
        limits, costs = self._limits[server], self._costs
        limited = within_limits(complete, self._gate, limits, lambda request: costs.worst_case(request).tokens)
        return limited if self._budget is None else within_budget(limited, self._budget, costs)

    def learns(self, group: str, server: str | None) -> Learn | None:
        limit = self._limits[server].get(group)
        return None if limit is None else limit.learn
