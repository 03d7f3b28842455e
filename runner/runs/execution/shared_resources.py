"""The resources that concurrent runs share: the event loop, its signals, the servers and the slots for games."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from runner.base.async_runner import run_sync
from runner.models.shared_servers import Servers, connections_of
from runner.rollouts.game_slots import Slots
from runner.rollouts.plan import Plan
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.process import connections_within_limits, relaxed_gc, stopping_on_signals, wait_for_signals
from runner.runs.execution.spending import used_models


class RunInProgress(Protocol):
    """A run in progress, with the methods that stopping it needs."""

    def in_flight(self) -> int:
        """Return the number of calls in flight."""
        ...

    def stopping(self, message: str) -> None:
        """Report to the run's watch that the run is stopping."""
        ...


class SharedResources:
    """The shared resources of one run, or of several that are played side by side."""

    def __init__(self, plans: Sequence[Plan], at_once: int = 1) -> None:
        """`at_once` of the plans' runs are played at the same time, or fewer if the limit of open files is too low."""
        concurrency = max(plan.share.rollouts.concurrency for plan in plans)
        if any(plan.spec.experiment.execution.by_workers for plan in plans):
            at_once = 1  # each run has its own workers, which use all cores of the machine
        calls = _connections(plans, concurrency, at_once)
        if calls < concurrency and at_once > 1:
            at_once, calls = 1, _connections(plans, concurrency, 1)
        self.at_once = at_once
        self.few_files = _few_files(calls, concurrency)
        """The note to report if this process may not open as many files as the calls need."""
        self.stop = StopSwitch()
        self.servers = Servers(calls, self.stop.sleep)
        self.slots = Slots(concurrency) if len(plans) > 1 else None
        """The slots for games; None for a single run, which is not limited by others."""
        self.in_play: list[RunInProgress] = []

    def play(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run a coroutine in a new event loop; the first signal stops all runs, the second cancels them.

        Raises:
            KeyboardInterrupt: it was interrupted before it started.
        """

        async def run_with_signals() -> None:
            with stopping_on_signals(self.stop, self._report_stopping):
                try:
                    await start()
                finally:
                    await self.servers.close()
                await wait_for_signals()

        with relaxed_gc():
            run_sync(run_with_signals)

    def _report_stopping(self, seconds: float) -> None:
        """Report to the watches that all runs are stopping, and how long they wait for calls in flight."""
        calls = sum(run.in_flight() for run in self.in_play)
        status = f"waiting for {calls} call{'s' * (calls != 1)} in flight, at most {seconds:.0f} s"
        for run in tuple(self.in_play):
            run.stopping(f"{status if calls else 'stopping'}; Ctrl-C again stops now")


def _connections(plans: Sequence[Plan], concurrency: int, runs: int) -> int:
    """Return how many concurrent calls this process may hold connections open for, on all servers of the plans."""
    groups = (settings for plan in plans for settings in used_models(plan).values())
    server_sets = {tuple(map(connections_of, settings.each_server)) for settings in groups if settings.is_called_live}
    # Calls are spread over a group's servers. After calls move to other servers, as many connections may stay idle.
    pools = sum(min(len(servers), 2) for servers in server_sets)
    if not pools:
        return concurrency
    return min(concurrency, max(connections_within_limits(concurrency * pools, runs) // pools, 1))


def _few_files(calls: int, concurrency: int) -> str | None:
    if calls >= concurrency:
        return None
    return (
        f"{calls} calls at once instead of {concurrency} (rollouts.concurrency): this process may open no more files "
        "(ulimit -n)"
    )
