"""The state of the writer of a run (the main process), and of the slots for its workers.

A slot is the place of one worker. If the worker dies, a new worker takes over its slot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner.base.storage.journal import Journal
from runner.models.costs import CallCosts
from runner.rollouts.plan import Plan
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.server_notes import ServerNotes
from runner.runs.workers import messages
from runner.runs.workers.leases import LeasedGame
from runner.runs.workers.open_games import OpenGames
from runner.runs.workers.permits import Permits, WorkerCalls
from runner.runs.workers.pool import WorkerHandle


@dataclass(eq=False)
class WorkerSlot:
    """A slot, with the worker that currently fills it and the games that this worker plays."""

    number: int
    worker: WorkerHandle | None = None
    is_ready: bool = False
    waited_until: float = 0.0
    """The time on the loop's clock when a starting worker's games are given to other workers."""
    silent_checks: int = 0
    """The number of checks in a row without a new message from the worker."""
    is_drained: bool = False
    """Whether the worker has reported everything."""
    leases: dict[int, LeasedGame] = field(default_factory=dict)
    """The games that the worker plays, by the index of their job."""
    plays_alone: bool = False
    """Whether the worker plays only one game, to find out whether the game kills workers."""
    sent_datapoints: set[str] = field(default_factory=set)
    """The datapoints whose records the worker has, if games share calls."""
    calls: WorkerCalls = field(default_factory=lambda: WorkerCalls(lambda _: None))
    appends: set[asyncio.Task[None]] = field(default_factory=set)
    """The tasks that write the worker's records to the journal."""

    def send(self, message: Any) -> None:
        """Send a message to the worker, if the slot has one."""
        if self.worker is not None:
            self.worker.send(message)


@dataclass(frozen=True)
class WriterState:
    """The state that all parts of a run's writer share."""

    plan: Plan
    start: messages.Start
    journal: Journal
    open_games: OpenGames
    permits: Permits
    accounting: Accounting
    notes: ServerNotes
    costs: CallCosts
    stop: StopSwitch
    check_budget: Callable[[], None]
