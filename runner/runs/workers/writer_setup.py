"""Builds the writer of a run with workers: the main process, which alone writes the run's files.

Workers are the processes that play the games of a run. For a run without workers, one process does everything, and
`runner.runs.execution.wiring` connects its parts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from runner.base.storage.journal import Journal
from runner.models.headers import remember_secrets
from runner.models.layers.lost_calls import InFlightFile
from runner.runs.execution.server_notes import ServerNotes
from runner.runs.execution.wiring import Wiring
from runner.runs.workers.game_records import GameRecords
from runner.runs.workers.local_pool import LocalPool
from runner.runs.workers.messages import StartMessage
from runner.runs.workers.permits import Permits
from runner.runs.workers.pool import WorkerPool
from runner.runs.workers.scheduler import GameScheduler
from runner.runs.workers.writer_state import WriterState


@asynccontextmanager
async def open_scheduler(
    wiring: Wiring, worker_count: int, *, sends_outputs: bool
) -> AsyncIterator[tuple[GameScheduler, Journal]]:
    """Open the journal, the budget and the limits, and yield a scheduler with this many workers, and the journal.

    With `sends_outputs`, workers send games as the entries of files and tables (`WorkerGame`) instead of as rollouts.

    Raises:
        RunDirectoryError, JournalError: the journal is in use, damaged, or belongs to another run.
        RunError: a file cannot be opened.
    """
    plan, costs, accounting = wiring.plan, wiring.costs, wiring.accounting
    async with AsyncExitStack() as exit_stack:
        journal = await wiring.open_journal(exit_stack)
        game_records = GameRecords(plan, journal, accounting)
        if journal.state_at_opening.records:
            game_records.load(wiring.folder.journal)
        in_flight = InFlightFile(wiring.folder.in_flight)
        exit_stack.callback(in_flight.close)
        accounting.progress.in_flight = in_flight.count_calls
        wiring.warn_about_open_files()
        for model_settings in costs.groups.values():
            remember_secrets(model_settings)  # so that the writer redacts API keys in messages from workers
        permits = Permits(
            costs=costs,
            servers=wiring.shared.servers,
            policy=plan.spec.experiment.retry,
            budget=wiring.budget,
            in_flight=in_flight,
            stop=wiring.stop,
            count_records=lambda: journal.records,
        )
        start_message = _start_message(wiring, journal, game_records, sends_outputs=sends_outputs)
        state = WriterState(
            plan, start_message, journal, game_records, permits, accounting,
            ServerNotes(costs.groups, wiring.notes, accounting.report_note), costs, wiring.stop,
            (lambda: None) if wiring.budget is None else wiring.budget.check,
        )  # fmt: skip
        yield GameScheduler(state, await _open_pool(wiring, exit_stack), worker_count), journal


def _start_message(wiring: Wiring, journal: Journal, game_records: GameRecords, *, sends_outputs: bool) -> StartMessage:
    return StartMessage(
        plan=wiring.plan,
        run_id=wiring.folder.run_id,
        is_journal_bound=journal.is_bound,
        answers_cost_money=wiring.answers_cost_money,
        is_budgeted=wiring.budget is not None,
        sends_outputs=sends_outputs,
        answered_model_groups=frozenset(game_records.answered_model_groups),
        concurrency=wiring.shared.servers.concurrency,
        adapters=dict(wiring.shared.servers.adapters),
        journal_id=journal.journal_id,
    )


async def _open_pool(wiring: Wiring, exit_stack: AsyncExitStack) -> WorkerPool:
    execution = wiring.plan.spec.experiment.execution
    if execution.engine == "processes":
        return LocalPool()
    from runner.runs.workers.cluster.pool import ray_pool  # imported here because most runs do not use a cluster

    return await exit_stack.enter_async_context(ray_pool(execution))
