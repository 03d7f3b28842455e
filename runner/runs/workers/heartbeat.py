"""Workers of which nothing is heard: one that hangs is ended, so that others play its games.

A worker says that it lives as often as it is looked at here. What counts is how often nothing was heard in a row, and
not what the clock says: a writer that was stopped itself, or slept with its machine, reads what waits for it before it
looks again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from runner.base.text import counted
from runner.runs.workers.messages import ALIVE_SECONDS
from runner.runs.workers.worker_state import WorkerSlot, WriterState

MOST = 12
"""So often in a row nothing is heard of a worker that hangs: longer than it is busy with the longest prompts."""

MOST_WHEN_STOPPING = 3
"""And where the run is to stop, and a person waits for that."""


class HeartbeatMonitor:
    """Looks after the workers of a run that have games."""

    def __init__(
        self,
        places: Sequence[WorkerSlot],
        held: WriterState,
        fail: Callable[[Exception], None],
        every: float = ALIVE_SECONDS,
    ) -> None:
        """`fail` is told what goes wrong here: whoever hears a note may raise."""
        self._places, self._held, self._fail, self._every = places, held, fail, every

    async def watch(self) -> None:
        """Look at all of them again and again, until cancelled."""
        try:
            while True:
                await asyncio.sleep(self._every)
                for place in self._places:
                    self._look(place)
        except Exception as error:  # noqa: BLE001 - the run must hear of it, whatever it is
            self._fail(error)

    def _look(self, place: WorkerSlot) -> None:
        worker = place.worker
        if worker is None or not place.leases:
            place.silent = 0
            return
        place.silent += 1
        if place.silent < (MOST_WHEN_STOPPING if self._held.stop.stopping else MOST):
            return
        how = f"said nothing for {place.silent * self._every:.0f} s, as one that hangs or was stopped, and was killed"
        place.silent = 0
        self._held.notes.note(f"a worker process {how}, with {counted(len(place.leases), 'game')} to play again")
        worker.kill(how)
