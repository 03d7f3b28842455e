"""Plays several runs concurrently in one event loop, such as the runs of a sweep.

The runs share limits, and a signal stops all of them. A slot is the permission to play one game at a time. Runs start
in the given order: a run starts when all earlier runs play games and slots are still free. Each run has its own folder,
journal, log and lock. If another process has locked a run, the run is tried again after all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from runner.base.async_runner import cancel_all
from runner.base.errors import BudgetExhausted, Interrupted, ProviderRefusal, RunDirectoryError
from runner.base.text import comma_join
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.engine import REFUSED_SECONDS, UNREACHABLE_SECONDS
from runner.rollouts.plan import Plan
from runner.runs.execution.baseline_run import load_baseline
from runner.runs.execution.process import interruptible, interruption
from runner.runs.execution.shared_resources import SharedResources
from runner.runs.finished.result import FinishedRun
from runner.runs.session.run import RunOptions, open_session, recording_failure

MAX_CONCURRENT_RUNS = 16
"""The maximum number of concurrent runs, because each keeps several files open."""


@dataclass(frozen=True)
class GamesRun:
    """A plan with its run id and options."""

    plan: Plan
    run_id: str
    options: RunOptions


OnFinish = Callable[[int, FinishedRun], None]
"""Called with the position of a finished run and its result."""


def run_together(runs: Sequence[GamesRun], results: Results, on_finish: OnFinish) -> None:
    """Play the games of several independent runs.

    `on_finish` is called for each finished run, in the order of `runs`. A fatal error in one run stops all runs: those
    in progress end as interrupted, and no other run starts. An exhausted budget stops only the runs that share it.

    Raises:
        BudgetExhausted, ProviderRefusal, Interrupted, RunError: the error of the run that failed first; see
            `run_games`. `on_finish` was called for all finished runs before.
    """
    shared = SharedResources([run.plan for run in runs], min(MAX_CONCURRENT_RUNS, len(runs)))
    player = _ParallelPlayer(runs, results, shared, on_finish)
    with interruptible(runs[0].run_id):
        try:
            shared.play(player.play)
        except KeyboardInterrupt:
            if not shared.stop.stopping:
                raise  # interrupted before anything was played
    player.check()


class _ParallelPlayer:
    """Plays several runs in this process."""

    def __init__(
        self, runs: Sequence[GamesRun], results: Results, shared: SharedResources, on_finish: OnFinish
    ) -> None:
        assert shared.slots is not None, "several runs share slots"
        self._runs, self._results, self._shared, self._on_finish = runs, results, shared, on_finish
        self._slots = shared.slots
        self._tasks: list[asyncio.Task[None]] = []
        self._done: dict[int, FinishedRun] = {}
        """The results that were not passed to `on_finish` yet, by the position of the run."""
        self._reported_count = 0
        self._failed: BaseException | None = None
        """The error that stopped all runs: that of the first run that failed."""
        self._locked: list[int] = []
        """The positions of the runs that another process had locked."""
        self._stopped: list[str] = []
        """The ids of the runs that were stopped."""
        self._interrupted = interruption(runs[0].run_id)
        self._notes: dict[str, None] = {}
        self._progress = asyncio.Event()
        self._slots.set_on_change(self._progress)
        shared.stop.set_on_stop(self._progress)

    async def play(self) -> None:
        """Play all runs. Errors are only stored; `check` raises them."""
        try:
            for order in range(len(self._runs)):
                while not (self._is_over(order) or self._can_start_another()):
                    await self._wait_for_progress()
                if self._is_over(order):
                    break
                self._tasks.append(asyncio.create_task(self._play_one(order)))
            await self._wait_for_all()
            for order in self._locked:
                if not self._is_over(order):
                    self._tasks.append(asyncio.create_task(self._play_one(order, is_last_try=True)))
            await self._wait_for_all()
        except asyncio.CancelledError:
            self._shared.stop.stop()  # the user interrupted a second time
        finally:
            await cancel_all(self._tasks)

    def check(self) -> None:
        """Call `on_finish` for the remaining finished runs, and raise the error that stopped the runs.

        Raises:
            NipRunError: see `run_together`.
        """
        for order in sorted(self._done):
            self._on_finish(order, self._done.pop(order))
        if self._failed is not None:
            if self._stopped:
                self._failed.add_note(
                    f"This error also stopped {comma_join(self._stopped)}; all paid answers are saved"
                )
            raise self._failed
        if len(self._stopped) > 1:
            message = f"runs {comma_join(self._stopped)} were interrupted; all paid answers are saved"
            raise Interrupted(message).with_notes(self._notes)
        if self._stopped:
            raise self._interrupted
        if self._shared.stop.stopping:
            raise interruption(self._runs[min(self._reported_count, len(self._runs) - 1)].run_id)

    async def _wait_for_all(self) -> None:
        while not all(task.done() for task in self._tasks):
            await self._wait_for_progress()

    async def _wait_for_progress(self) -> None:
        self._progress.clear()
        await self._progress.wait()

    def _is_over(self, order: int) -> bool:
        """Return whether a run that waits must not start any more."""
        budget = self._runs[order].options.budget
        return self._shared.stop.stopping or self._failed is not None or (budget is not None and budget.is_exhausted)

    def _can_start_another(self) -> bool:
        """Return whether the next run can start: all started runs play games, and slots are still free.

        Runs are started in their order, so the position of a task is the position of its run.
        """
        in_play = [order for order, task in enumerate(self._tasks) if not task.done()]
        all_playing = all(self._slots.has_started(order) for order in in_play)
        return len(in_play) < self._shared.at_once and all_playing and self._slots.has_free

    async def _play_one(self, order: int, *, is_last_try: bool = False) -> None:
        """Play one run and store its result, or the error for `check`. A run that is in use is tried again later."""
        run = self._runs[order]
        try:
            result = await self._result(order, run, is_last_try=is_last_try)
            if result is None:
                self._locked.append(order)
                return
            self._done[order] = result
            while self._reported_count in self._done:
                position, self._reported_count = self._reported_count, self._reported_count + 1
                self._on_finish(position, self._done.pop(position))
        except (Interrupted, asyncio.CancelledError) as error:
            self._stopped.append(run.run_id)
            self._notes.update(dict.fromkeys(getattr(error, "__notes__", ())))
            self._interrupted = error if isinstance(error, Interrupted) else interruption(run.run_id)
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._fail(run, error)
        finally:
            self._progress.set()

    async def _result(self, order: int, run: GamesRun, *, is_last_try: bool) -> FinishedRun | None:
        """Play a run and return its result; None if another process has locked the run and this is not the last try."""
        results = self._results
        baseline = load_baseline(run.plan, results, run.run_id)
        with ExitStack() as locks:
            try:
                if not run.options.locked:
                    locks.enter_context(results.lock(run.run_id))
            except RunDirectoryError:
                if is_last_try:
                    raise
                return None
            session = open_session(
                run.plan, results, run.run_id, run.options, self._shared, order=order, baseline=baseline
            )
            if isinstance(session, FinishedRun):
                return session
            with recording_failure(session, results):
                await session.play()
        if run.plan.shard is None:
            await asyncio.to_thread(results.board.append, session.folder)
        return session.result()

    def _fail(self, run: GamesRun, error: BaseException) -> None:
        """Store the error of the first run that failed, and stop the others."""
        if self._failed is not None:
            self._stopped.append(run.run_id)
            return
        self._failed = error
        if isinstance(error, BudgetExhausted):
            return  # the budget itself stops the runs that share it, and other runs play on
        self._shared.stop.stop()
        seconds = REFUSED_SECONDS if isinstance(error, ProviderRefusal) else UNREACHABLE_SECONDS
        asyncio.get_running_loop().call_later(seconds, self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
