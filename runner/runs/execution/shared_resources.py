"""What runs that are played at the same time share: their loop and its signals, the servers, the places for games."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from runner.base.async_runner import run_sync
from runner.models.shared_servers import Servers, connections_of
from runner.rollouts.game_slots import Slots
from runner.rollouts.plan import Plan
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.process import connections_within_limits, relaxed_gc, signals_heard, stopping_on_signals
from runner.runs.execution.spending import used_models


class InPlay(Protocol):
    """A run that is being played, as far as whoever stops it needs to know."""

    def in_flight(self) -> int:
        """How many calls wait for their answers."""
        ...

    def stopping(self, message: str) -> None:
        """Tell those who watch the run that it is to stop."""
        ...


class Shared:
    """One for a run by itself, or one for all that are played side by side."""

    def __init__(self, plans: Sequence[Plan], at_once: int = 1) -> None:
        """Of the plans' runs, `at_once` are played at the same time, or fewer where no more files can be opened."""
        concurrency = max(plan.share.rollouts.concurrency for plan in plans)
        if any(plan.spec.experiment.execution.by_workers for plan in plans):
            at_once = 1  # each has workers of its own, which are all that the machine has cores for
        calls = _connections(plans, concurrency, at_once)
        if calls < concurrency and at_once > 1:
            at_once, calls = 1, _connections(plans, concurrency, 1)
        self.at_once = at_once
        self.few_files = _few_files(calls, concurrency)
        """What to note where this process may not open as many files as the calls need."""
        self.stop = StopSwitch()
        self.servers = Servers(calls, self.stop.sleep)
        self.slots = Slots(concurrency) if len(plans) > 1 else None
        """None: a run by itself has all places that it wants."""
        self.in_play: list[InPlay] = []

    def play(self, start: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run what plays to its end, on a loop of its own: the first signal stops all runs, the second cancels them.

        Raises:
            KeyboardInterrupt: it was interrupted before it began.
        """

        async def attended() -> None:
            with stopping_on_signals(self.stop, self._tell):
                try:
                    await start()
                finally:
                    await self.servers.close()
                await signals_heard()

        with relaxed_gc():
            run_sync(attended)

    def _tell(self, seconds: float) -> None:
        """Tell those who watch that all is to stop, and what for it waits, at most so long."""
        calls = sum(run.in_flight() for run in self.in_play)
        waits = f"waiting for {calls} call{'s' * (calls != 1)} in flight, at most {seconds:.0f} s"
        for run in tuple(self.in_play):
            run.stopping(f"{waits if calls else 'stopping'}; Ctrl-C again stops now")


def _connections(plans: Sequence[Plan], concurrency: int, runs: int) -> int:
    """The calls at once for which this process may hold connections open, on every server of all plans."""
    groups = (settings for plan in plans for settings in used_models(plan).values())
    asked = {tuple(map(connections_of, settings.each_server)) for settings in groups if settings.called_live}
    # Calls are shared out among several servers; connections that idle after they have moved may be as many again.
    pools = sum(min(len(each), 2) for each in asked)
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
