"""What the writer of a run knows of each worker, and holds itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from runner.base.storage.journal import Journal
from runner.rollouts.plan import Plan
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.server_notes import ServerNotes
from runner.runs.workers import messages
from runner.runs.workers.leases import Leased
from runner.runs.workers.permits import Asking, Permits
from runner.runs.workers.pool import WorkerHandle
from runner.runs.workers.writer import OpenGames


@dataclass(eq=False)
class WorkerSlot:
    """One of the places for workers, and the worker that is there now."""

    number: int
    worker: WorkerHandle | None = None
    is_ready: bool = False
    waited_until: float = 0.0
    """Until when a worker that begins is counted as one that plays, by the loop's clock."""
    silent: int = 0
    """How often it was looked at since something was heard of its worker."""
    is_drained: bool = False
    leases: dict[int, Leased] = field(default_factory=dict)
    plays_alone: bool = False
    known: set[str] = field(default_factory=set)
    """The datapoints whose records the worker has, where games share calls."""
    asking: Asking = field(default_factory=lambda: Asking(lambda _: None))
    appends: set[asyncio.Task[None]] = field(default_factory=set)

    def send(self, message: Any) -> None:
        """Tell the worker that is there; nobody, where none is."""
        if self.worker is not None:
            self.worker.send(message)


@dataclass(frozen=True)
class WriterState:
    """What the writer of a run holds, and no worker."""

    plan: Plan
    start: messages.Start
    journal: Journal
    written: OpenGames
    permits: Permits
    accounting: Accounting
    notes: ServerNotes
    priced: bool
    stop: StopSwitch
    check_budget: Callable[[], None]
