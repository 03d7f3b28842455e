"""What follows from the death of a worker: its calls in flight are counted, and too many deaths end the run."""

from __future__ import annotations

import secrets

from runner.base.errors import RunError
from runner.models.journal_records import LostRecord
from runner.models.usage_totals import UsageTotals
from runner.runs.workers.leases import ALONE
from runner.runs.workers.worker_state import WorkerSlot, WriterState

AT_ONCE_IN_A_ROW = 3
"""So many workers, or as many as there are, may die before they take a game, one after the other."""

IN_A_ROW = 12
"""So many workers, or thrice as many as there are, may die one after the other with no game finished between."""


async def count_lost(held: WriterState, place: WorkerSlot, how: str) -> None:
    """Write what the calls that a worker left in flight may cost into the journal."""
    slots = place.asking.slots
    most = sum(slots.values(), UsageTotals())
    if not most.completions:
        return
    # Killed between these two, this process leaves slots that the next one counts once more: rather that than not.
    await held.journal.append(LostRecord(f"worker-{secrets.token_hex(8)}", most).to_json())
    held.permits.counted(place.asking)
    upto = f"${most.usd:.4f} is" if held.priced else f"{most.tokens} tokens are"
    calls = "1 call was" if most.completions == 1 else f"{most.completions} calls were"
    held.notes.note(
        f"a worker process {how}: {calls} in flight there; up to {upto} counted for what they cost, and they are "
        "asked again"
    )


class LostWorkers:
    """Counts the deaths of workers in a row."""

    def __init__(self, workers: int) -> None:
        # All workers of a machine die with it, which is one event: so of a cluster many may die in a row.
        self._most_early, self._most = max(AT_ONCE_IN_A_ROW, workers), max(IN_A_ROW, 3 * workers)
        self._all = self._early = 0

    def forget(self) -> None:
        """A game was finished."""
        self._all = self._early = 0

    def count(self, place: WorkerSlot, how: str, *, was_ready: bool) -> None:
        """Count a worker's death, for its games too.

        Raises:
            RunError: they die again and again, or each that plays one game.
        """
        self._all += 1
        self._early += not was_ready
        for leased in place.leases.values():
            leased.deaths += 1
            leased.alone += place.plays_alone
            if leased.alone >= ALONE:
                job = leased.job
                raise RunError(
                    f"{leased.deaths} worker processes died while they played rollout {job.rollout_id} "
                    f"({job.datapoint.id}, repeat {job.repeat}), {ALONE} of them nothing else; the last {how}. What "
                    "was paid for is kept; look at that datapoint, or run the same command again "
                    "without `execution` (~execution) to see what it does in one process"
                )
        for count, most, when in (
            (self._early, self._most_early, "before they took a game"),
            (self._all, self._most, "and no game was finished"),
        ):
            if count >= most:
                raise RunError(
                    f"{count} worker processes died one after the other, {when}; the last {how}. What was paid for is "
                    "kept; lower the number of workers or rollouts.concurrency where memory is short, and run the same "
                    "command again"
                )
