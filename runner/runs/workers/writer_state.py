"""The state of the writer of a run (the main process), and of the slots for its workers.

A slot is the place of one worker. If the worker dies, a new worker takes over its slot.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from runner.base.storage.journal import Journal
from runner.models.costs import CallCosts
from runner.models.layers.budget import Budget
from runner.rollouts.plan import Plan
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.server_notes import ServerProblemDetector
from runner.runs.workers import messages
from runner.runs.workers.game_records import GameRecordStore
from runner.runs.workers.leases import LeasedGame
from runner.runs.workers.permits import PermitIssuer, WorkerCalls
from runner.runs.workers.pool import WorkerHandle


@dataclass(eq=False)
class WorkerSlot:
    """A slot, with the worker that currently fills it and the games that this worker plays."""

    number: int
    worker: WorkerHandle | None = None
    is_ready: bool = False
    start_deadline: float = 0.0
    """The time, by the event loop's clock, after which the games reserved for a starting worker go to other workers."""
    silent_checks: int = 0
    """The number of heartbeat checks since the last message from the worker."""
    has_final_report: bool = False
    """Whether the worker has reported everything, or was never ready and so has nothing to report."""
    leases: dict[int, LeasedGame] = field(default_factory=dict)
    """The games that the worker plays, by the index of their job."""
    is_testing_suspect: bool = False
    """Whether the worker plays one game alone, to find out whether this game kills workers."""
    sent_datapoints: set[str] = field(default_factory=set)
    """If games share calls: the ids of the datapoints whose records were sent to the worker."""
    calls: WorkerCalls = field(default_factory=lambda: WorkerCalls(lambda _: None))
    append_tasks: set[asyncio.Task[None]] = field(default_factory=set)
    """The tasks that write the worker's records to the journal."""

    def send(self, message: Any) -> None:
        """Send a message to the worker, if the slot has one."""
        if self.worker is not None:
            self.worker.send(message)


@dataclass(frozen=True)
class WriterState:
    """The state that all parts of a run's writer share."""

    plan: Plan
    start_message: messages.StartMessage
    """The first message to each worker."""
    journal: Journal
    game_records: GameRecordStore
    permits: PermitIssuer
    accounting: Accounting
    notes: ServerProblemDetector
    costs: CallCosts
    stop: StopSwitch
    budget: Budget | None
