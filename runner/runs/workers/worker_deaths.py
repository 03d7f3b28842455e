"""Deaths of workers: the calls in flight are counted, and too many deaths end the run."""

from __future__ import annotations

import secrets

from runner.base.errors import RunError
from runner.models.journal_records import LostRecord
from runner.models.usage_totals import UsageTotals
from runner.runs.workers.leases import ALONE
from runner.runs.workers.worker_state import WorkerSlot, WriterState

AT_ONCE_IN_A_ROW = 3
"""The run ends if so many workers, or as many as there are, die in a row before they take a game."""

IN_A_ROW = 12
"""The run ends if so many workers, or three times as many as there are, die in a row and no game is finished."""


async def count_lost(state: WriterState, slot: WorkerSlot, reason: str) -> None:
    """Record the worst case of the calls that a worker left in flight in the journal."""
    most = sum(slot.calls.in_flight.values(), UsageTotals())
    if not most.completions:
        return
    # If this process is killed between these two lines, the next one counts the calls twice, which is safe.
    await state.journal.append(LostRecord(f"worker-{secrets.token_hex(8)}", most).to_json())
    state.permits.clear(slot.calls)
    upto = f"${most.usd:.4f} is" if state.priced else f"{most.tokens} tokens are"
    calls = "1 call was" if most.completions == 1 else f"{most.completions} calls were"
    state.notes.note(
        f"a worker process {reason}: {calls} in flight there; up to {upto} counted for what they cost, and they are "
        "asked again"
    )


class WorkerDeaths:
    """Counts the deaths of workers in a row."""

    def __init__(self, workers: int) -> None:
        # The workers of a machine die together with it, so that in a cluster many may die in a row.
        self._most_early, self._most = max(AT_ONCE_IN_A_ROW, workers), max(IN_A_ROW, 3 * workers)
        self._all = self._early = 0

    def reset(self) -> None:
        """Start counting again, because a game was finished."""
        self._all = self._early = 0

    def count(self, slot: WorkerSlot, reason: str, *, was_ready: bool) -> None:
        """Count the death of a worker, also against each of its games.

        Raises:
            RunError: Workers die again and again, or each worker that plays one game.
        """
        self._all += 1
        self._early += not was_ready
        for leased in slot.leases.values():
            leased.deaths += 1
            leased.alone += slot.plays_alone
            if leased.alone >= ALONE:
                job = leased.job
                raise RunError(
                    f"{leased.deaths} worker processes died while they played rollout {job.rollout_id} "
                    f"({job.datapoint.id}, repeat {job.repeat}), {ALONE} of them nothing else; the last {reason}. What "
                    "was paid for is kept; look at that datapoint, or run the same command again "
                    "without `execution` (~execution) to see what it does in one process"
                )
        for count, most, when in (
            (self._early, self._most_early, "before they took a game"),
            (self._all, self._most, "and no game was finished"),
        ):
            if count >= most:
                raise RunError(
                    f"{count} worker processes died in a row, {when}; the last {reason}. What was paid for is kept; if "
                    "memory is short, lower the number of workers or rollouts.concurrency, and run the same command "
                    "again"
                )
