"""Connects the parts of a run's writer. The writer is the main process of a run with workers, and writes all files.

Workers are the processes that play the games of a run. For a run without workers, one process does everything, and
`runner.runs.execution.layer_builder` connects its parts.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from runner.base.storage.journal import Journal
from runner.models.headers import remember_secrets
from runner.models.layers.lost_calls import InFlightFile
from runner.runs.execution.layer_builder import LayerBuilder
from runner.runs.execution.server_notes import ServerProblemDetector
from runner.runs.workers.game_records import GameRecordStore
from runner.runs.workers.local_pool import LocalPool
from runner.runs.workers.messages import StartMessage
from runner.runs.workers.permits import PermitIssuer
from runner.runs.workers.pool import WorkerPool
from runner.runs.workers.scheduler import GameScheduler
from runner.runs.workers.writer_state import WriterState


@asynccontextmanager
async def open_scheduler(
    builder: LayerBuilder, worker_count: int, *, sends_outputs: bool
) -> AsyncIterator[tuple[GameScheduler, Journal]]:
    """Open the journal, and yield it with a scheduler of this many workers.

    With `sends_outputs`, a worker sends the entries of files and tables for each game (`WorkerGame`), not the rollout.

    Raises:
        RunDirectoryError, JournalError: the journal is in use, damaged, or belongs to another run.
        RunError: a file cannot be opened.
    """
    plan, costs, accounting = builder.plan, builder.costs, builder.accounting
    async with AsyncExitStack() as exit_stack:
        journal = await builder.open_journal(exit_stack)
        game_records = GameRecordStore(plan, journal, accounting)
        if journal.state_at_opening.records:
            game_records.load(builder.folder.journal)
        in_flight = InFlightFile(builder.folder.in_flight)
        exit_stack.callback(in_flight.close)
        accounting.progress.in_flight = in_flight.count_calls
        builder.warn_about_open_files()
        for model_settings in costs.groups.values():
            remember_secrets(model_settings)  # so that the writer redacts API keys in messages from workers
        permits = PermitIssuer(
            costs=costs, servers=builder.shared.servers, retry=plan.spec.experiment.retry, budget=builder.budget,
            in_flight_file=in_flight, stop=builder.stop, count_records=lambda: journal.records,
        )  # fmt: skip
        start_message = _start_message(builder, journal, game_records, sends_outputs=sends_outputs)
        state = WriterState(
            plan=plan, start_message=start_message, journal=journal, game_records=game_records, permits=permits,
            accounting=accounting, notes=ServerProblemDetector(costs.groups, builder.notes, accounting.report_note),
            costs=costs, stop=builder.stop, budget=builder.budget,
        )  # fmt: skip
        yield GameScheduler(state, await _open_pool(builder, exit_stack), worker_count), journal


def _start_message(
    builder: LayerBuilder, journal: Journal, game_records: GameRecordStore, *, sends_outputs: bool
) -> StartMessage:
    servers = builder.shared.servers
    return StartMessage(
        plan=builder.plan, run_id=builder.folder.run_id, is_journal_bound_to_run=journal.is_bound_to_run,
        answers_cost_money=builder.answers_cost_money, is_budgeted=builder.budget is not None,
        sends_outputs=sends_outputs, answered_model_groups=frozenset(game_records.answered_model_groups),
        concurrency=servers.concurrency, adapters=dict(servers.adapters), journal_id=journal.journal_id,
    )  # fmt: skip


async def _open_pool(builder: LayerBuilder, exit_stack: AsyncExitStack) -> WorkerPool:
    execution = builder.plan.spec.experiment.execution
    if execution.engine == "processes":
        return LocalPool()
    from runner.runs.workers.cluster.pool import ray_pool  # imported here because most runs do not use a cluster

    return await exit_stack.enter_async_context(ray_pool(execution))
