"""Kills workers that have been silent for too long, so that other workers play their games.

A worker sends a message at least once per check. The monitor counts the checks without a message instead of measuring
the time, because the writer (the main process) may be suspended. When the writer continues, it reads all waiting
messages before the next check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from runner.base.text import counted
from runner.runs.workers.messages import ALIVE_SECONDS
from runner.runs.workers.worker_state import WorkerSlot, WriterState

SILENT_CHECKS = 12
"""A worker is killed after this many silent checks in a row. Rendering the longest prompts takes less time."""

SILENT_CHECKS_WHEN_STOPPING = 3
"""The same limit while the run is stopping. It is lower, because a person may be waiting."""


class HeartbeatMonitor:
    """Checks all workers that have games at regular intervals."""

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        state: WriterState,
        fail: Callable[[Exception], None],
        interval_seconds: float = ALIVE_SECONDS,
    ) -> None:
        """Prepare the monitor. If a check raises an error, the monitor ends and passes the error to `fail`."""
        self._slots, self._state, self._fail, self._interval_seconds = slots, state, fail, interval_seconds

    async def watch(self) -> None:
        """Check all workers at each interval, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._interval_seconds)
                for slot in self._slots:
                    self._check(slot)
        except Exception as error:  # noqa: BLE001 - any error must end the run
            self._fail(error)

    def _check(self, slot: WorkerSlot) -> None:
        """Kill a worker that has games and sent nothing in the last checks."""
        worker = slot.worker
        if worker is None or not slot.leases:
            slot.silent_checks = 0
            return
        slot.silent_checks += 1
        if slot.silent_checks < (SILENT_CHECKS_WHEN_STOPPING if self._state.stop.is_stopping else SILENT_CHECKS):
            return
        what_happened = f"sent nothing for {slot.silent_checks * self._interval_seconds:.0f} s and was killed"
        slot.silent_checks = 0
        self._state.notes.note(
            f"a worker process {what_happened}; other workers play its {counted(len(slot.leases), 'game')} again"
        )
        worker.kill(what_happened)
