"""Runs played side by side, on one loop: under one set of limits, and stopped together.

They begin in the order given, the next one as soon as the games of those before it leave places free; each keeps its
own folder, journal, log and lock, as if it were played alone. One that another process has is tried again when all
others are done.
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
from runner.runs.execution.baseline_run import compared_with
from runner.runs.execution.process import interruptible
from runner.runs.execution.shared_resources import Shared
from runner.runs.finished.result import FinishedRun
from runner.runs.session.run import RunOptions, ending, opened
from runner.runs.session.session import interrupted

AT_ONCE = 16
"""The most runs that are played at the same time: each holds its journal, its tables in parts and its log open."""


@dataclass(frozen=True)
class GamesOf:
    """The run of a plan, under its name."""

    plan: Plan
    run_id: str
    options: RunOptions


def run_together(runs: Sequence[GamesOf], results: Results, ended: Callable[[int, FinishedRun], None]) -> None:
    """Play the games of several runs, none of which needs another.

    `ended` is called with the result of each, and its place among them, in the order of `runs`. What stops one run for
    good stops all: those that are in play end as interrupted, and no other begins. A budget that is used up stops the
    runs that share it.

    Raises:
        BudgetExhausted, ProviderRefusal, Interrupted, RunError: of the run that failed first, as `run_games`; those
            that were done have been given to `ended` before.
    """
    shared = Shared([run.plan for run in runs], min(AT_ONCE, len(runs)))
    side_by_side = _SideBySide(runs, results, shared, ended)
    with interruptible(runs[0].run_id):
        try:
            shared.play(side_by_side.play)
        except KeyboardInterrupt:
            if not shared.stop.stopping:
                raise  # before anything was played
    side_by_side.check()


class _SideBySide:
    """One process's execution of several runs."""

    def __init__(
        self, runs: Sequence[GamesOf], results: Results, shared: Shared, ended: Callable[[int, FinishedRun], None]
    ) -> None:
        assert shared.slots is not None, "several runs share places"
        self._runs, self._results, self._shared, self._ended = runs, results, shared, ended
        self._slots = shared.slots
        self._tasks: list[asyncio.Task[None]] = []
        self._done: dict[int, FinishedRun] = {}
        self._given = 0
        self._failed: BaseException | None = None
        """What the first run failed with that was not told to stop."""
        self._later: list[int] = []
        """Those that another process has."""
        self._stopped: list[str] = []
        """The runs that were told to stop."""
        self._interrupted = interrupted(runs[0].run_id)
        self._notes: dict[str, None] = {}
        self._moved = asyncio.Event()
        self._slots.wakes(self._moved)
        shared.stop.wakes(self._moved)

    async def play(self) -> None:
        """Play all runs; what fails is kept for `check`."""
        try:
            for order in range(len(self._runs)):
                while not (self._is_over(order) or self._has_room()):
                    await self._until_moved()
                if self._is_over(order):
                    break
                self._tasks.append(asyncio.create_task(self._play_one(order)))
            await self._all_done()
            for order in self._later:
                if not self._is_over(order):
                    self._tasks.append(asyncio.create_task(self._play_one(order, is_last_try=True)))
            await self._all_done()
        except asyncio.CancelledError:
            self._shared.stop.stop()  # the second signal
        finally:
            await cancel_all(self._tasks)

    def check(self) -> None:
        """Give what is done and was held back, and raise what stopped the runs.

        Raises:
            NipRunError: see `run_together`.
        """
        for order in sorted(self._done):
            self._ended(order, self._done.pop(order))
        if self._failed is not None:
            if self._stopped:
                self._failed.add_note(f"stopped with it, all paid for is kept: {comma_join(self._stopped)}")
            raise self._failed
        if len(self._stopped) > 1:
            runs = Interrupted(f"runs {comma_join(self._stopped)} were interrupted; what was paid for is kept")
            raise runs.with_notes(self._notes)
        if self._stopped:
            raise self._interrupted
        if self._shared.stop.stopping:
            raise interrupted(self._runs[min(self._given, len(self._runs) - 1)].run_id)

    async def _all_done(self) -> None:
        while not all(task.done() for task in self._tasks):
            await self._until_moved()

    async def _until_moved(self) -> None:
        self._moved.clear()
        await self._moved.wait()

    def _is_over(self, order: int) -> bool:
        """Whether a run is not to begin any more."""
        budget = self._runs[order].options.budget
        return self._shared.stop.stopping or self._failed is not None or (budget is not None and budget.is_exhausted)

    def _has_room(self) -> bool:
        """Whether one more run is of use: places are free, once those that began have taken theirs."""
        in_play = [order for order, task in enumerate(self._tasks) if not task.done()]  # they began in order
        have_come = all(self._slots.has_come(order) for order in in_play)
        return len(in_play) < self._shared.at_once and have_come and self._slots.has_free

    async def _play_one(self, order: int, *, is_last_try: bool = False) -> None:
        run = self._runs[order]
        try:
            result = await self._result(order, run, is_last_try=is_last_try)
            if result is None:
                self._later.append(order)
                return
            self._done[order] = result
            while self._given in self._done:
                self._given += 1
                self._ended(self._given - 1, self._done.pop(self._given - 1))
        except (Interrupted, asyncio.CancelledError) as error:
            self._stopped.append(run.run_id)
            self._notes.update(dict.fromkeys(getattr(error, "__notes__", ())))
            self._interrupted = error if isinstance(error, Interrupted) else interrupted(run.run_id)
        except BaseException as error:  # noqa: BLE001 - `check` raises it
            self._fail(run, error)
        finally:
            self._moved.set()

    async def _result(self, order: int, run: GamesOf, *, is_last_try: bool) -> FinishedRun | None:
        """What a run came to; None where another process has it."""
        results = self._results
        compared = compared_with(run.plan, results, run.run_id)
        with ExitStack() as held:
            try:
                if not run.options.locked:
                    held.enter_context(results.lock(run.run_id))
            except RunDirectoryError:
                if is_last_try:
                    raise
                return None
            session = opened(run.plan, results, run.run_id, run.options, self._shared, order=order, compared=compared)
            if isinstance(session, FinishedRun):
                return session
            with ending(session, results):
                await session.play()
        if run.plan.shard is None:
            await asyncio.to_thread(results.board.append, session.folder)
        return session.result()

    def _fail(self, run: GamesOf, error: BaseException) -> None:
        """Keep what the first run failed with, and stop the others."""
        if self._failed is not None:
            self._stopped.append(run.run_id)
            return
        self._failed = error
        if isinstance(error, BudgetExhausted):
            return  # those of this budget begin no game any more, and the budgets of others hold for them
        self._shared.stop.stop()
        seconds = REFUSED_SECONDS if isinstance(error, ProviderRefusal) else UNREACHABLE_SECONDS
        asyncio.get_running_loop().call_later(seconds, self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks:
            task.cancel()
