"""The writer's part of a run's layers, put together and closed again: what `runs.wiring` is to one process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from runner.base.storage.journal import Journal
from runner.models.headers import remember_secrets
from runner.models.layers.lost_calls import InFlight
from runner.runs.execution.server_notes import ServerNotes
from runner.runs.execution.wiring import Wiring
from runner.runs.workers.messages import Start
from runner.runs.workers.permits import Permits
from runner.runs.workers.pool import LocalCrew, WorkerPool
from runner.runs.workers.scheduler import GameScheduler
from runner.runs.workers.worker_state import WriterState
from runner.runs.workers.writer import OpenGames


@asynccontextmanager
async def leasing(wiring: Wiring, workers: int, *, makes: bool) -> AsyncIterator[tuple[GameScheduler, Journal]]:
    """What has this many workers play a run; `makes`: they make of games what its files get.

    Raises:
        RunDirectoryError, JournalError: the journal is in use, damaged, or of another run.
        RunError: a file cannot be opened.
    """
    plan, costs, accounting = wiring.plan, wiring.costs, wiring.accounting
    async with AsyncExitStack() as closing:
        journal = await wiring.journal(closing)
        written = OpenGames(plan, journal, accounting)
        if journal.opened.records:
            written.read(wiring.folder.journal)
        in_flight = InFlight(wiring.folder.in_flight)
        closing.callback(in_flight.close)
        accounting.progress.in_flight = in_flight.count
        wiring.note_few_files()
        for settings in costs.groups.values():
            remember_secrets(settings)  # so that nothing that is written here holds one
        permits = Permits(
            costs=costs,
            servers=wiring.shared.servers,
            policy=plan.spec.experiment.retry,
            budget=wiring.budget,
            in_flight=in_flight,
            stop=wiring.stop,
            records=lambda: journal.records,
        )
        start = Start(
            plan,
            wiring.folder.run_id,
            journal.is_bound,
            wiring.is_durable,
            wiring.budget is not None,
            makes,
            frozenset(written.answered),
            wiring.shared.servers.concurrency,
            dict(wiring.shared.servers.adapters),
            is_far=plan.spec.experiment.execution.engine == "ray",
            journal=journal.number,
        )
        held = WriterState(
            plan, start, journal, written, permits, accounting,
            ServerNotes(costs.groups, wiring.notes, accounting.tell), costs.priced, wiring.stop,
            (lambda: None) if wiring.budget is None else wiring.budget.check,
        )  # fmt: skip
        yield GameScheduler(held, await _crew(wiring, closing), workers), journal


async def _crew(wiring: Wiring, closing: AsyncExitStack) -> WorkerPool:
    """Where the workers come from, by the spec."""
    execution = wiring.plan.spec.experiment.execution
    if execution.engine == "processes":
        return LocalCrew()
    from runner.runs.workers.cluster.pool import ray_crew  # most runs have no cluster

    return await closing.enter_async_context(ray_crew(execution))
