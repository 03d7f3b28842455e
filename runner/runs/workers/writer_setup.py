"""Builds the writer of a run with workers. The writer is the main process, and only it writes the run's files.

A session uses this module if the run has workers, and `runs.execution.wiring` alone if it has none.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from runner.base.storage.journal import Journal
from runner.models.headers import remember_secrets
from runner.models.layers.lost_calls import InFlightFile
from runner.runs.execution.server_notes import ServerNotes
from runner.runs.execution.wiring import Wiring
from runner.runs.workers.local_pool import LocalPool
from runner.runs.workers.messages import StartMessage
from runner.runs.workers.open_games import OpenGames
from runner.runs.workers.permits import Permits
from runner.runs.workers.pool import WorkerPool
from runner.runs.workers.scheduler import GameScheduler
from runner.runs.workers.worker_state import WriterState


@asynccontextmanager
async def open_scheduler(
    wiring: Wiring, workers: int, *, sends_outputs: bool
) -> AsyncIterator[tuple[GameScheduler, Journal]]:
    """Open the journal, the budget and the limits, and yield the journal and a scheduler of this many workers.

    With `sends_outputs`, workers send the outputs of games instead of rollouts.

    Raises:
        RunDirectoryError, JournalError: the journal is in use, damaged, or belongs to another run.
        RunError: a file cannot be opened.
    """
    plan, costs, accounting = wiring.plan, wiring.costs, wiring.accounting
    async with AsyncExitStack() as closing:
        journal = await wiring.open_journal(closing)
        open_games = OpenGames(plan, journal, accounting)
        if journal.opened.records:
            open_games.read(wiring.folder.journal)
        in_flight = InFlightFile(wiring.folder.in_flight)
        closing.callback(in_flight.close)
        accounting.progress.in_flight = in_flight.count_calls
        wiring.add_open_files_note()
        for settings in costs.groups.values():
            remember_secrets(settings)  # so that the writer redacts these secrets
        permits = Permits(
            costs=costs,
            servers=wiring.shared.servers,
            policy=plan.spec.experiment.retry,
            budget=wiring.budget,
            in_flight=in_flight,
            stop=wiring.stop,
            count_records=lambda: journal.records,
        )
        start = _start_message(wiring, journal, open_games, sends_outputs=sends_outputs)
        state = WriterState(
            plan, start, journal, open_games, permits, accounting,
            ServerNotes(costs.groups, wiring.notes, accounting.report_note), costs, wiring.stop,
            (lambda: None) if wiring.budget is None else wiring.budget.check,
        )  # fmt: skip
        yield GameScheduler(state, await _open_pool(wiring, closing), workers), journal


def _start_message(wiring: Wiring, journal: Journal, open_games: OpenGames, *, sends_outputs: bool) -> StartMessage:
    servers = wiring.shared.servers
    return StartMessage(
        plan=wiring.plan,
        run_id=wiring.folder.run_id,
        is_bound=journal.is_bound,
        answers_cost_money=wiring.answers_cost_money,
        is_budgeted=wiring.budget is not None,
        sends_outputs=sends_outputs,
        answered_groups=frozenset(open_games.answered_groups),
        concurrency=servers.concurrency,
        adapters=dict(servers.adapters),
        journal_id=journal.number,
    )


async def _open_pool(wiring: Wiring, closing: AsyncExitStack) -> WorkerPool:
    execution = wiring.plan.spec.experiment.execution
    if execution.engine == "processes":
        return LocalPool()
    from runner.runs.workers.cluster.pool import ray_pool  # imported here because most runs do not use a cluster

    return await closing.enter_async_context(ray_pool(execution))
