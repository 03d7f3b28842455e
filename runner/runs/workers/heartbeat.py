"""The watch over silent workers: a worker that hangs is killed, so that others play its games.

A worker sends a message at least as often as it is checked here. The silent checks in a row count, not the time: a
writer that was stopped itself, or was asleep with its machine, reads the waiting messages before it checks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from runner.base.text import counted
from runner.runs.workers.messages import ALIVE_SECONDS
from runner.runs.workers.worker_state import WorkerSlot, WriterState

SILENT_CHECKS = 12
"""The number of silent checks in a row after which a worker is killed; even the longest prompts take less time."""

SILENT_CHECKS_WHEN_STOPPING = 3
"""The same number while the run is stopping and a person waits for it."""


class HeartbeatMonitor:
    """Checks the workers that have games."""

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        state: WriterState,
        fail: Callable[[Exception], None],
        every: float = ALIVE_SECONDS,
    ) -> None:
        """`fail` is called with an error that ends the watch, such as one raised by a callback for notes."""
        self._slots, self._state, self._fail, self._every = slots, state, fail, every

    async def watch(self) -> None:
        """Check all workers at each interval, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._every)
                for slot in self._slots:
                    self._check(slot)
        except Exception as error:  # noqa: BLE001 - any error must end the run
            self._fail(error)

    def _check(self, slot: WorkerSlot) -> None:
        worker = slot.worker
        if worker is None or not slot.leases:
            slot.silent = 0
            return
        slot.silent += 1
        if slot.silent < (SILENT_CHECKS_WHEN_STOPPING if self._state.stop.stopping else SILENT_CHECKS):
            return
        reason = f"sent nothing for {slot.silent * self._every:.0f} s, so it hangs or was stopped, and was killed"
        slot.silent = 0
        self._state.notes.note(f"a worker process {reason}, with {counted(len(slot.leases), 'game')} to play again")
        worker.kill(reason)
