"""Plays several runs concurrently in one event loop, such as the runs of a sweep.

The runs share limits, and a signal stops all of them. A slot is the permission to play one game at a time. Runs start
in the given order: the next run starts once every unfinished earlier run has started its first game and a slot is still
free. Each run has its own folder, journal, log and lock. If another process has locked a run, the run is tried again
after all others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import ExitStack

from runner.base.async_runner import cancel_all
from runner.base.errors import BudgetExhausted, Interrupted, RunDirectoryError
from runner.base.text import comma_join
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.engine import grace_seconds_after
from runner.runs.execution.baseline_run import load_baseline
from runner.runs.execution.process import interrupted_error, interruptible
from runner.runs.execution.shared_resources import SharedResources
from runner.runs.finished.result import FinishedRun
from runner.runs.session.run import GamesRun, open_session, recording_failure

_SAVED = "All answers so far are saved in the journals of these runs and are not paid for again"

MAX_CONCURRENT_RUNS = 16
"""The maximum number of concurrent runs, because each keeps several files open."""


OnFinish = Callable[[int, FinishedRun], None]
"""Called with the position of a finished run and its result."""


def run_together(runs: Sequence[GamesRun], results: Results, on_finish: OnFinish) -> None:
    """Play the games of several independent runs.

    `on_finish` is called for each finished run, in the order of `runs`. A fatal error in one run stops all runs: those
    in progress end as interrupted, and no other run starts. An exhausted budget stops only the runs that share it: the
    others are played before the error is raised.

    Raises:
        BudgetExhausted, ProviderRefusal, Interrupted, RunError: the error of the run that failed first; see
            `run_games`. Before it is raised, `on_finish` is called for every run that finished.
    """
    shared = SharedResources([run.plan for run in runs], min(MAX_CONCURRENT_RUNS, len(runs)))
    player = _ParallelPlayer(runs, results, shared, on_finish)
    with interruptible(runs[0].run_id):
        try:
            shared.run_in_event_loop(player.play)
        except KeyboardInterrupt:
            if not shared.stop.is_stopping:
                raise  # interrupted before anything was played
    player.finish()


class _ParallelPlayer:
    """Plays several runs in this process."""

    def __init__(
        self, runs: Sequence[GamesRun], results: Results, shared: SharedResources, on_finish: OnFinish
    ) -> None:
        assert shared.slots is not None, "several runs share slots"
        self._runs, self._results, self._shared, self._on_finish = runs, results, shared, on_finish
        self._slots = shared.slots
        self._tasks: dict[int, asyncio.Task[None]] = {}
        """The tasks that play the runs, by the position of the run."""
        self._unreported: dict[int, FinishedRun] = {}
        """The results that were not passed to `on_finish` yet, by the position of the run."""
        self._reported_count = 0
        self._first_error: BaseException | None = None
        """The error of the run that failed first."""
        self._locked_positions: list[int] = []
        """The positions of the runs that another process had locked."""
        self._stopped_ids: list[str] = []
        """The ids of the runs that were stopped."""
        self._interrupted_error = interrupted_error(runs[0].run_id)
        """The error to raise if a signal stopped exactly one run."""
        self._notes: dict[str, None] = {}
        """The notes of all stopped runs, without repetitions."""
        self._state_changed = asyncio.Event()
        """Set after a run ends or starts its first game, a slot becomes free, or the runs are stopped."""
        self._slots.notify_on_change(self._state_changed)
        shared.stop.call_on_stop(self._state_changed.set)

    async def play(self) -> None:
        """Play all runs. Errors are only stored, and `finish` raises one of them."""
        try:
            for position in range(len(self._runs)):
                while not (self._must_not_start(position) or self._can_start_another()):
                    await self._wait_for_change()
                if not self._must_not_start(position):
                    self._tasks[position] = asyncio.create_task(self._play_run(position))
            await self._wait_for_all()
            for position in self._locked_positions:
                if not self._must_not_start(position):
                    self._tasks[position] = asyncio.create_task(self._play_run(position, is_last_try=True))
            await self._wait_for_all()
        except asyncio.CancelledError:
            self._shared.stop.stop()  # the user interrupted a second time
        finally:
            await cancel_all(self._tasks.values())

    def finish(self) -> None:
        """Call `on_finish` for the remaining finished runs, and raise the error that stopped the runs, if any.

        Raises:
            NipRunError: see `run_together`.
        """
        for position in sorted(self._unreported):
            self._on_finish(position, self._unreported.pop(position))
        if self._first_error is not None:
            if self._stopped_ids:
                self._first_error.add_note(f"This error also stopped {comma_join(self._stopped_ids)}. {_SAVED}")
            raise self._first_error
        if len(self._stopped_ids) > 1:
            ids = comma_join(self._stopped_ids)
            message = f"runs {ids} were interrupted; run the same command again to resume them. {_SAVED}"
            raise Interrupted(message).with_notes(self._notes)
        if self._stopped_ids:
            raise self._interrupted_error
        if self._shared.stop.is_stopping:
            raise interrupted_error(self._runs[min(self._reported_count, len(self._runs) - 1)].run_id)

    async def _wait_for_all(self) -> None:
        while not all(task.done() for task in self._tasks.values()):
            await self._wait_for_change()

    async def _wait_for_change(self) -> None:
        self._state_changed.clear()
        await self._state_changed.wait()

    def _must_not_start(self, position: int) -> bool:
        """Return whether a waiting run must not start, because all runs are stopping or its budget is exhausted."""
        budget = self._runs[position].options.budget
        return self._shared.stop.is_stopping or (budget is not None and budget.is_exhausted)

    def _can_start_another(self) -> bool:
        """Return whether the next run can start: all unfinished runs have started games, and a slot is still free."""
        unfinished = [position for position, task in self._tasks.items() if not task.done()]
        all_have_started_games = all(self._slots.has_run_started(position) for position in unfinished)
        return len(unfinished) < self._shared.max_concurrent_runs and all_have_started_games and self._slots.has_free

    async def _play_run(self, position: int, *, is_last_try: bool = False) -> None:
        """Play one run, and store its result or error. A run that another process has locked is tried again later."""
        run = self._runs[position]
        try:
            result = await self._play_unless_locked(position, run, is_last_try=is_last_try)
            if result is None:
                self._locked_positions.append(position)
                return
            self._unreported[position] = result
            while self._reported_count in self._unreported:
                next_position, self._reported_count = self._reported_count, self._reported_count + 1
                self._on_finish(next_position, self._unreported.pop(next_position))
        except (Interrupted, asyncio.CancelledError) as error:
            self._stopped_ids.append(run.run_id)
            self._notes.update(dict.fromkeys(getattr(error, "__notes__", ())))
            self._interrupted_error = error if isinstance(error, Interrupted) else interrupted_error(run.run_id)
        except BaseException as error:  # noqa: BLE001 - `finish` raises it
            self._record_failure(run, error)
        finally:
            self._state_changed.set()

    async def _play_unless_locked(self, position: int, run: GamesRun, *, is_last_try: bool) -> FinishedRun | None:
        """Play a run and return its result; None if another process has locked the run, except for the last try."""
        results = self._results
        baseline = load_baseline(run.plan, results, run.run_id)
        with ExitStack() as locks:
            try:
                if not run.options.holds_lock:
                    locks.enter_context(results.lock(run.run_id))
            except RunDirectoryError:
                if is_last_try:
                    raise
                return None
            session = open_session(run, results, self._shared, run_position=position, baseline=baseline)
            if isinstance(session, FinishedRun):
                return session
            with recording_failure(session, results):
                await session.play()
        if run.plan.shard is None:
            await asyncio.to_thread(results.board.append, session.folder)
        return session.result()

    def _record_failure(self, run: GamesRun, error: BaseException) -> None:
        """Store the error of the run that failed first, and stop the others."""
        if self._first_error is not None:
            self._stopped_ids.append(run.run_id)
            return
        self._first_error = error
        if isinstance(error, BudgetExhausted):
            return  # the budget stops the runs that share it, and the other runs go on
        self._shared.stop.stop()
        asyncio.get_running_loop().call_later(grace_seconds_after(error), self._cancel)

    def _cancel(self) -> None:
        for task in self._tasks.values():
            task.cancel()
