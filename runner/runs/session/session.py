"""A session: one process's execution of a run, which plays the remaining games and writes all files.

`runner.runs.session.run` and `runner.runs.shards.merge` create sessions. Sessions of several runs may share one event
loop, whose signals `SharedResources` handles.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, suppress
from contextvars import copy_context
from dataclasses import KW_ONLY, dataclass, replace
from typing import Protocol

from runner.base.errors import ANSWERS_ARE_SAVED, BudgetExhausted, CallError, FolderGoneError, RunError, Stopped
from runner.base.storage.log_lines import first_record
from runner.base.text import counted
from runner.models.layers.budget import Budget
from runner.models.usage_totals import UsageTotals
from runner.results.baseline_scores import BaselineScores
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED, Manifest, Status
from runner.results.stopping_rule import StoppingDecision
from runner.results.table_columns import COLUMNS
from runner.rollouts.engine import ERRORS_THAT_STOP_ALL, LEAD_FACTOR, MIN_LEAD, Engine
from runner.rollouts.estimate import answer_bytes
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan, used_models
from runner.rollouts.reorder_buffer import FinishedJob, PlanOrderBuffer
from runner.rollouts.transcript import RolloutTranscript
from runner.rollouts.trees import NOT_COMPARABLE
from runner.runs.execution.accounting import Accounting, OnProgress
from runner.runs.execution.game_outputs import WorkerGame, needs_rollouts
from runner.runs.execution.layer_builder import LayerBuilder, ModelLayers
from runner.runs.execution.process import available_cores, interrupted_error, log_to, wait_for_signal_handlers
from runner.runs.execution.rollout_writer import RolloutWriter
from runner.runs.execution.shared_resources import SharedResources
from runner.runs.execution.spending import measure_spending, run_costs
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import ReplayOf, is_whole_replay
from runner.runs.finished.stored_problems import store_problems

_GAME_ENDING_ERRORS = (Stopped, BudgetExhausted, *ERRORS_THAT_STOP_ALL)
"""Errors that end games in progress. They are ignored once the stopping rule has ended the run."""


class Player(Protocol):
    """Plays all games of a run: `Engine` in this process, or `GameScheduler` with workers."""

    async def play_all(self, jobs: Iterator[Job], results: PlanOrderBuffer, concurrency: int) -> None: ...


@dataclass(eq=False)
class Session:
    """One process's execution of a run."""

    plan: Plan
    folder: RunFolder
    manifest: Manifest
    shared: SharedResources
    _: KW_ONLY
    run_position: int = 0
    """The run's position among the runs that share resources."""
    budget: Budget | None = None
    replay: ReplayOf | None = None
    on_progress: OnProgress | None = None
    on_rollout: Callable[[RolloutTranscript], None] | None = None
    baseline: BaselineScores | None = None
    recorded_only: bool = False
    """Whether no model is called."""

    def __post_init__(self) -> None:
        plan, shared, baseline = self.plan, self.shared, self.baseline
        self.notes: list[str] = []
        self.price_notes: list[str] = []
        """Notes on prices that differ from those of earlier calls."""
        self.lost: str | None = None
        """A description of the games lost in transport, if they are more than the spec allows."""
        if plan.tree_shape is not None and self.manifest.parent_run_id is None:
            self.notes.append(NOT_COMPARABLE)
        rule = plan.spec.experiment.until
        self._stopping_decision = None if rule is None else StoppingDecision(plan, rule, baseline)
        if baseline is not None:
            self.notes.extend(baseline.notes(plan.spec.dataset.datapoints))
        self._stop = shared.stop if rule is None else shared.stop.create_child()
        self._costs = run_costs(plan)
        self._is_counted = False
        """Whether `_costs` has counted all calls of the run."""
        self._accounting = Accounting(plan, self._costs, self.on_progress)
        self._builder = LayerBuilder(
            plan, self.folder, self._costs, self._accounting, shared, self._stop, self.notes, self.budget, self.replay,
            self.recorded_only,
        )  # fmt: skip
        self._log_context = copy_context()
        """The context whose log messages go to the run's log."""
        self._earlier_manifest: Manifest | None = None
        """The manifest at the start of this session; None for a new run."""

    async def play(self) -> None:
        """Play the remaining games, then write all files.

        Raises:
            Interrupted, BudgetExhausted, ProviderRefusal, RunError: the run did not finish; all answers are saved.
            FolderGoneError: the run's folder was moved or deleted; the message says where the answers are.
        """
        self._earlier_manifest = self.folder.manifest() if self.folder.manifest_path.is_file() else None
        self.manifest = replace(self.manifest, status=Status.RUNNING)
        self.folder.write_manifest(self.manifest)
        self.folder.unseal()
        self.shared.runs_in_progress.append(self)
        try:
            with log_to(self.folder.log):
                self._log_context = copy_context()
                await self._play_with_layers()
        except (Stopped, asyncio.CancelledError):
            if self.manifest.status == Status.RUNNING:  # any other status was set after all files were written
                self._write_unfinished_manifest(Status.INTERRUPTED)
            raise interrupted_error(self.folder.run_id) from None
        except FolderGoneError:
            raise  # without writing to the path, which may belong to another folder now
        except Exception as error:
            self._write_unfinished_manifest(
                Status.INTERRUPTED if isinstance(error, BudgetExhausted) else Status.FAILED, error
            )
            if isinstance(error, (CallError, OSError)):
                raise RunError(f"run {self.folder.run_id} failed: {error}") from error
            if isinstance(error, MemoryError) or "can't start new thread" in str(error):
                raise RunError(
                    f"run {self.folder.run_id} failed: out of memory. Lower rollouts.concurrency or give the process "
                    f"more memory, and run the same command again. {ANSWERS_ARE_SAVED}"
                ) from None
            raise
        finally:
            self.shared.runs_in_progress.remove(self)

    def play_in_new_loop(self) -> None:
        """Play the remaining games in a new event loop, then write all files.

        Raises:
            NipRunError: see `play`. A signal raises `Interrupted` even if it arrives after everything was written.
        """
        self.shared.run_in_event_loop(self.play)
        if self.shared.stop.is_stopping:
            raise interrupted_error(self.folder.run_id)

    def result(self) -> FinishedRun:
        """Return the result of the run after `play` has returned."""
        metrics = self.folder.read_metrics()
        return FinishedRun(self.folder, self.manifest, metrics, notes=tuple(self.notes), lost=self.lost)

    def in_flight(self) -> int:
        """Return the number of calls in flight."""
        return self._accounting.progress.in_flight()

    def report_stopping(self, message: str) -> None:
        """Report to the progress callback and in the run's log that the run is stopping."""
        self._log_context.run(self._accounting.warn, "signal", message)

    def _write_unfinished_manifest(self, status: Status, error: Exception | None = None) -> None:
        """Write the manifest of a run that did not finish."""
        self._add_problem_notes()
        with suppress(RunError):  # without this manifest, the run is shown as interrupted; the journal has all records
            counts = self._accounting.unfinished_counts(measure_spending(self.plan, self.folder))
            self.manifest = self.manifest.with_error(error).ended(status, **counts)
            self.folder.write_manifest(self.manifest)

    async def _play_with_layers(self) -> None:
        """Connect the models or start the workers, then play the remaining games and write the run's files."""
        if self._builder.is_live:
            check_disk_space(self.plan, self.folder)
        workers = self._worker_count()
        if workers is not None:
            from runner.runs.workers.writer_setup import open_scheduler  # most runs have no workers

            sends_outputs = self.on_rollout is None and not needs_rollouts(self.plan)
            async with open_scheduler(self._builder, workers, sends_outputs=sends_outputs) as (scheduler, journal):
                cores = min(workers, available_cores())
                await self._play_and_write(scheduler, journal.check_not_moved, lambda: journal.records, cores)
            return
        has_earlier_calls = self.folder.journal.is_file() or self.folder.in_flight.is_file()
        self._is_counted = self._stopping_decision is None and not has_earlier_calls
        async with self._builder.open_layers() as layers:

            def check_after_games() -> None:
                layers.check_groups_answered()
                layers.check_folder()

            await self._play_and_write(self._create_engine(layers), check_after_games, layers.count_records)

    def _worker_count(self) -> int | None:
        """Return the number of workers; None if this process plays the games itself."""
        execution = self.plan.spec.experiment.execution
        if not execution.by_workers:
            return None
        if not self._builder.is_live:
            if self._builder.replay is not None:
                key = "processes" if execution.engine == "processes" else "workers"
                self.notes.append(f"a replay is played by one process, so execution.{key} is ignored")
            return None
        workers = min(execution.count, self._concurrency())
        if execution.engine == "processes" and workers > (cores := available_cores()):
            self.notes.append(
                f"{workers} worker processes share {counted(cores, 'core')}; execution.processes={cores} is as fast"
            )
        return None if execution.engine == "processes" and workers == 1 else workers

    def _create_engine(self, layers: ModelLayers) -> Engine:
        """Return the engine that plays the games in this process."""
        return Engine.from_plan(
            self.plan,
            layers.complete,
            failed_calls=layers.failed_calls,
            on_end=layers.on_end,
            stop=self._stop,
            slots=None if self._plays_all_at_once else self.shared.slots,
            run_position=self.run_position,
            check_budget=(lambda: None) if self.budget is None else self.budget.check,
        )

    async def _play_and_write(
        self, player: Player, check_after_games: Callable[[], None], count_records: Callable[[], int], cores: int = 1
    ) -> None:
        """Play all games and write the run's files, with up to `cores` cores for the tables.

        `check_after_games` raises an error if the run must fail although all games have ended. `count_records` returns
        the number of records in the journal.
        """
        writer = RolloutWriter(self.plan, self.folder)
        try:
            await self._play_games(player, writer, check_after_games)
        except BaseException:
            writer.discard()
            raise
        await asyncio.to_thread(writer.seal, cores)
        self._finish(writer, count_records)

    async def _play_games(self, player: Player, writer: RolloutWriter, check_after_games: Callable[[], None]) -> None:
        """Play all games, and pass their rollouts to `writer` in the order of the plan."""
        concurrency = self._concurrency()

        def write(finished: FinishedJob) -> None:
            self._write(finished, writer)
            if self._stopping_decision is not None:
                assert isinstance(finished, Sequence), "with `until`, workers send rollouts"
                if self._stopping_decision.add(finished):
                    order_buffer.end()
                    self._stop.stop()
                order_buffer.window = self._stopping_decision.max_games_ahead(concurrency)

        # The window is the number of games that may be played ahead of the first unfinished one.
        window = max(MIN_LEAD, LEAD_FACTOR * concurrency)
        window = window if self._stopping_decision is None else self._stopping_decision.max_games_ahead(concurrency)
        order_buffer = PlanOrderBuffer(write, window, writer.rows_folder)
        if self._plays_all_at_once and self.shared.slots is not None:
            self.shared.slots.mark_run_started(self.run_position)
        with closing(order_buffer):
            try:
                await player.play_all(self.plan.jobs(), order_buffer, concurrency)
            except _GAME_ENDING_ERRORS:
                if not order_buffer.has_ended:
                    raise
            await wait_for_signal_handlers()
            if not order_buffer.has_ended:
                self._stop.check()
            check_after_games()

    def _write(self, finished: FinishedJob, writer: RolloutWriter) -> None:
        """Write and count the rollouts of one job, or the outputs that a worker has built from the rollouts."""
        accounting = self._accounting
        if isinstance(finished, WorkerGame):
            for worker_rollout in finished.rollouts:
                writer.add_output(worker_rollout.output)
                accounting.add_counts(worker_rollout.counts)
                accounting.problems.add_rollout_without_problems(*worker_rollout.answer_and_message_counts)
        else:
            assert isinstance(finished, Sequence)
            for rollout in finished:
                writer.add(rollout)
                accounting.add(rollout)
                if self.on_rollout is not None:
                    self.on_rollout(RolloutTranscript.of(rollout, self.folder.run_id, self.plan.spec.protocol))
            writer.end_job(finished)
        accounting.end_job()

    def _concurrency(self) -> int:
        """Return the number of games to play concurrently."""
        if self._stopping_decision is None and self._plays_all_at_once:
            return self.plan.size
        if self._stopping_decision is not None and is_whole_replay(self._builder.replay):
            return 1  # the replayed run has no answers for games after the one where it stopped
        return min(self.plan.shard_experiment.rollouts.concurrency, self.plan.size)

    @property
    def _plays_all_at_once(self) -> bool:
        """Whether all games are played concurrently: to fill batches, or because people take long to answer."""
        is_slow = any(settings.batch or settings.traits.asks_people for settings in used_models(self.plan).values())
        return is_slow and not is_whole_replay(self._builder.replay)

    def _finish(self, writer: RolloutWriter, count_records: Callable[[], int]) -> None:
        """Write notes, problems and the manifest after all games."""
        accounting = self._accounting
        self.notes.extend(writer.finish(self._stopping_decision))
        store_problems(self.folder, accounting.problems.all_problems())
        self._add_problem_notes()
        self.lost = accounting.describe_loss()
        is_counted = self._is_counted and not self.in_flight()
        spent = None if is_counted else measure_spending(self.plan, self.folder)
        counts = accounting.final_counts(UsageTotals(self._costs.recorded_usd) if spent is None else spent.maximum)
        if spent is not None and self._stopping_decision is not None and self._stopping_decision.decided:
            unused_count, usd = spent.answers - counts["completions"], counts["cost_usd"]
            if unused_count > 0:
                paid = "are paid for" if usd is None else f"cost ${spent.usd - usd:.4f} more"
                self.notes.append(
                    f"{counted(unused_count, 'answer')} not used: they belong to games after the one where `until` "
                    f"stopped; they {paid} and are stored in the journal"
                )
        earlier = self._earlier_manifest
        calls = counts["completions"], counts["failed_calls"]
        if earlier is not None and earlier.status in PLAYED and (earlier.completions, earlier.failed_calls) == calls:
            # No model was called. Keep the recorded cost, because prices may have changed since.
            counts |= {"cost_usd": earlier.cost_usd, "cost_usd_at_most": earlier.cost_usd_at_most}
            counted_price = "cost_usd keeps the earlier price until the run plays more games"
        else:
            counted_price = "cost_usd counts all calls of the run at the new price"
        self.notes.extend(f"{note}; {counted_price}" for note in self.price_notes)
        if self.plan.shard is not None:  # `merge` compares this number with the journal to detect a truncated file
            self.manifest = replace(self.manifest, journal_records=count_records())
        self.folder.seal(*COLUMNS)
        first = first_record(self.folder.journal) or {}
        self.manifest = replace(self.manifest.ended(accounting.status(), **counts), journal=first.get("journal"))
        self.folder.write_manifest(self.manifest)

    def _add_problem_notes(self) -> None:
        """Add each problem of the games to the notes once."""
        self.notes.extend(line for line in map(str, self._accounting.problems.all_problems()) if line not in self.notes)


TABLE_COPIES = 2
"""The number of copies of an answer in the tables: one as a call, one as a message."""


def check_disk_space(plan: Plan, folder: RunFolder) -> None:
    """Check that the disk has space for the remaining answers and for the files that are built from them.

    The estimate is a lower bound. It assumes the shortest possible games, and answers as long as the word limits.

    Raises:
        RunError: the disk does not have enough space.
    """
    if not any(settings.traits.metered for settings in used_models(plan).values()):
        return
    answers = answer_bytes(plan)
    written = folder.journal.stat().st_size if folder.journal.is_file() else 0
    if answers <= written:
        return  # the answers so far are longer than estimated, so the size of the remaining answers is unknown
    fine_tune = plan.spec.experiment.fine_tune
    needed = answers - written + answers * (TABLE_COPIES + (0 if fine_tune is None else len(fine_tune.formats)))
    try:
        disk = os.statvfs(folder.path)
    except OSError as error:
        raise RunError(
            f"cannot read the free disk space of {folder.path}: {error.strerror}. Check the disk, or choose another "
            "--results DIR; no model was called"
        ) from error
    free = disk.f_bavail * disk.f_frsize
    if disk.f_blocks and free < needed:
        raise RunError(
            f"not enough space in {folder.path}: the run needs about {_format_megabytes(needed)}, but only "
            f"{_format_megabytes(free)} are free. Free some space, or choose another --results DIR; no model was called"
        )


def _format_megabytes(count: int) -> str:
    return f"{count / 1e6:,.1f} MB"
