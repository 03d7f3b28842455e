"""Kills workers that have been silent for too long, so that other workers play their games.

A worker sends a message at least once per check. The checks without a message are counted, and no time is measured,
because the writer (the main process) may be suspended. When the writer continues, it reads all waiting messages before
the next check.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from runner.base.text import counted
from runner.runs.workers.messages import ALIVE_SECONDS
from runner.runs.workers.writer_state import WorkerSlot, WriterState

SILENT_CHECKS = 12
"""A worker is killed after this many silent checks in a row. Rendering the longest prompts takes less time."""

SILENT_CHECKS_WHEN_STOPPING = 3
"""The same limit while the run is stopping. It is lower, because a person may be waiting."""


async def watch_workers(
    slots: Sequence[WorkerSlot], state: WriterState, fail: Callable[[Exception], None], seconds: float = ALIVE_SECONDS
) -> None:
    """Check all workers every `seconds`, until cancelled. If a check raises an error, pass it to `fail` and return."""
    try:
        while True:
            await asyncio.sleep(seconds)
            for slot in slots:
                _kill_if_silent(slot, state, seconds)
    except Exception as error:  # noqa: BLE001 - any error must end the run
        fail(error)


def _kill_if_silent(slot: WorkerSlot, state: WriterState, seconds: float) -> None:
    """Kill a worker that has games, and has sent nothing in the last checks."""
    worker = slot.worker
    if worker is None or not slot.leases:
        slot.silent_checks = 0
        return
    slot.silent_checks += 1
    if slot.silent_checks < (SILENT_CHECKS_WHEN_STOPPING if state.stop.is_stopping else SILENT_CHECKS):
        return
    exit_reason = f"sent nothing for {slot.silent_checks * seconds:.0f} s and was killed"
    slot.silent_checks = 0
    state.notes.note(
        f"a worker process {exit_reason}; other workers play its {counted(len(slot.leases), 'game')} again"
    )
    worker.kill(exit_reason)
