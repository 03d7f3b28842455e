"""The resources that concurrent runs share: the event loop, signals, connections to servers, and slots for games.

A command creates them once for one run, or for several runs such as those of a sweep. A slot allows one game at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Protocol

from runner.base.async_runner import run_sync
from runner.base.question_queue import QuestionQueue
from runner.models.server_states import Servers, connection_key
from runner.rollouts.game_slots import GameSlots
from runner.rollouts.plan import Plan, used_models
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.process import (
    relaxed_gc,
    reserve_connections,
    stopping_on_signals,
    wait_for_signal_handlers,
)


class RunInProgress(Protocol):
    """A run in progress, as `SharedResources` sees it when it stops the run."""

    def in_flight(self) -> int:
        """Return the number of calls in flight."""
        ...

    def report_stopping(self, message: str) -> None:
        """Report to the run's progress callback that the run is stopping."""
        ...


class SharedResources:
    """The resources of one run, or of several concurrent runs."""

    def __init__(self, plans: Sequence[Plan], max_concurrent_runs: int = 1) -> None:
        """Prepare to play up to `max_concurrent_runs` runs concurrently.

        Only one run is played at a time if a spec uses workers, or if the limit of open files is too low.
        """
        # `rollouts.concurrency` limits both the concurrent games and the concurrent calls of all runs together.
        concurrency = max(plan.shard_experiment.rollouts.concurrency for plan in plans)
        if any(plan.spec.experiment.execution.by_workers for plan in plans):
            max_concurrent_runs = 1  # each run has its own workers, which use all cores of the machine
        max_calls = _max_concurrent_calls(plans, concurrency, max_concurrent_runs)
        if max_calls < concurrency and max_concurrent_runs > 1:
            max_concurrent_runs, max_calls = 1, _max_concurrent_calls(plans, concurrency, 1)
        self.max_concurrent_runs = max_concurrent_runs
        self.open_files_note = _open_files_note(max_calls, concurrency)
        """The note to report if the limit of open files allows fewer calls than the spec; otherwise None."""
        self.stop = StopSwitch()
        self.servers = Servers(max_calls)
        self.slots = GameSlots(concurrency) if len(plans) > 1 else None
        """The slots for games that the runs share; None for a single run."""
        self.questions: QuestionQueue | None = None
        """The questions for people; None if no run has any."""
        self.runs_in_progress: list[RunInProgress] = []

    def run_in_event_loop(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Run the coroutine `main()` in a new event loop. The first signal stops all runs, the second cancels them.

        Raises:
            KeyboardInterrupt: SIGINT arrived before the coroutine started.
        """

        async def run_with_signal_handlers() -> None:
            with stopping_on_signals(self.stop, self._report_stopping):
                try:
                    await main()
                finally:
                    await self.servers.close()
                await wait_for_signal_handlers()

        with relaxed_gc():
            run_sync(run_with_signal_handlers)

    def _report_stopping(self, seconds: float) -> None:
        """Report that all runs are stopping, and that they wait at most `seconds` for calls in flight."""
        calls = sum(run.in_flight() for run in self.runs_in_progress)
        status = f"waiting for {calls} call{'s' * (calls != 1)} in flight, at most {seconds:.0f} s"
        for run in tuple(self.runs_in_progress):
            run.report_stopping(f"{status if calls else 'stopping'}; press Ctrl-C again to stop immediately")


def _max_concurrent_calls(plans: Sequence[Plan], concurrency: int, run_count: int) -> int:
    """Return the number of concurrent calls that the limit of open files allows, at most `concurrency`.

    `run_count` is the number of concurrent runs, which also need open files.
    """
    all_models = (settings for plan in plans for settings in used_models(plan).values() if settings.sends_requests)
    server_sets = {tuple(map(connection_key, settings.settings_per_server)) for settings in all_models}
    # A connection stays open after a call. So each concurrent call may need an open connection for each set of servers,
    # or two if the set has several servers: one to the current server, and an idle one to the previous server.
    open_connections_per_call = sum(min(len(servers), 2) for servers in server_sets)
    if not open_connections_per_call:
        return concurrency
    connections = reserve_connections(concurrency * open_connections_per_call, run_count)
    return min(concurrency, max(connections // open_connections_per_call, 1))


def _open_files_note(max_calls: int, concurrency: int) -> str | None:
    if max_calls >= concurrency:
        return None
    return (
        f"only {max_calls} concurrent calls instead of {concurrency} (rollouts.concurrency), because this process may "
        "not open more files; raise the limit with ulimit -n"
    )
