"""Deaths of workers: counts their calls in flight, and ends the run after too many deaths."""

from __future__ import annotations

import secrets

from runner.base.errors import RunError
from runner.models.journal_records import LostRecord
from runner.models.usage_totals import UsageTotals
from runner.runs.workers.leases import ALONE
from runner.runs.workers.worker_state import WorkerSlot, WriterState

AT_ONCE_IN_A_ROW = 3
"""The run ends if this many workers (at least the number of workers) die in a row before they get a game."""

IN_A_ROW = 12
"""The run ends if this many workers (at least 3 times the number of workers) die in a row without a finished game."""


async def count_lost(state: WriterState, slot: WorkerSlot, reason: str) -> None:
    """Record the calls that a worker left in flight in the journal, at their maximum cost."""
    most = sum(slot.calls.in_flight.values(), UsageTotals())
    if not most.completions:
        return
    # If this process is killed between these two lines, the next one counts the calls twice, which is harmless.
    await state.journal.append(LostRecord(f"worker-{secrets.token_hex(8)}", most).to_json())
    state.permits.clear(slot.calls)
    amount = f"${most.usd:.4f} is" if state.priced else f"{most.tokens} tokens are"
    calls = "1 call was" if most.completions == 1 else f"{most.completions} calls were"
    state.notes.note(
        f"a worker process {reason}: {calls} in flight there; up to {amount} counted as their cost, and the calls "
        "are repeated"
    )


class WorkerDeaths:
    """Counts the deaths of workers in a row."""

    def __init__(self, workers: int) -> None:
        # In a cluster, all workers of a machine die together with it, so many may die in a row.
        self._most_early, self._most = max(AT_ONCE_IN_A_ROW, workers), max(IN_A_ROW, 3 * workers)
        self._all = self._early = 0

    def reset(self) -> None:
        """Start counting again, because a game was finished."""
        self._all = self._early = 0

    def count(self, slot: WorkerSlot, reason: str, *, was_ready: bool) -> None:
        """Count the death of a worker, also against each of its games.

        Raises:
            RunError: workers die repeatedly, or every worker that plays a certain game dies.
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
                    f"({job.datapoint.id}, repeat {job.repeat}), {ALONE} of them only that one; the last {reason}. All "
                    "paid answers are saved. Check that datapoint, or run the same command again without `execution` "
                    "(~execution) to see what happens in one process"
                )
        for count, limit, when in (
            (self._early, self._most_early, "before they took a game"),
            (self._all, self._most, "and no game was finished"),
        ):
            if count >= limit:
                raise RunError(
                    f"{count} worker processes died in a row, {when}; the last {reason}. All paid answers are saved. "
                    "If memory is short, lower the number of workers or rollouts.concurrency, and run the same "
                    "command again"
                )
