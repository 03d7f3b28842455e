"""Counts the deaths of workers and the calls that they left in flight, and ends the run after too many deaths.

The scheduler counts a death before it starts a new worker in the slot of the dead one.
"""

from __future__ import annotations

import secrets

from runner.base.errors import ANSWERS_ARE_SAVED, RunError
from runner.models.journal_records import LostRecord
from runner.models.usage_totals import UsageTotals
from runner.runs.execution.spending import describe_lost_calls
from runner.runs.workers.leases import MAX_DEATHS_ALONE
from runner.runs.workers.writer_state import WorkerSlot, WriterState

MAX_EARLY_DEATHS = 3
"""The run ends after this many deaths in a row of workers that were not ready yet. Many workers raise the limit."""

MAX_DEATHS = 12
"""The run ends after this many deaths without a finished game in between. Many workers raise the limit."""


async def record_calls_in_flight(state: WriterState, slot: WorkerSlot, exit_reason: str) -> None:
    """Record the maximum cost of the calls that a dead worker left in flight in the journal, and add a note."""
    max_cost = sum(slot.calls.in_flight.values(), UsageTotals())
    if not max_cost.completions:
        return
    # If this process is killed between these two lines, the run's next process counts the calls again. The total is
    # then too high, but still an upper bound.
    await state.journal.append(LostRecord(f"worker-{secrets.token_hex(8)}", max_cost).to_json())
    state.permits.remove_all(slot.calls)
    lost = describe_lost_calls(max_cost, "there", is_priced=state.costs.is_priced)
    state.notes.note(f"a worker process {exit_reason}: {lost}, and another worker repeats the calls")


class WorkerDeathCounter:
    """Counts the deaths of workers since a game was last finished."""

    def __init__(self, worker_count: int) -> None:
        # The limits grow with the number of workers, because all workers of a cluster's node die with the node.
        self._max_early_deaths = max(MAX_EARLY_DEATHS, worker_count)
        self._max_deaths = max(MAX_DEATHS, 3 * worker_count)
        self._deaths = self._early_deaths = 0
        """The number of all deaths, and of deaths of workers that were not ready yet."""

    def reset(self) -> None:
        """Set the counts to 0, because a game was finished."""
        self._deaths = self._early_deaths = 0

    def count(self, slot: WorkerSlot, exit_reason: str, *, was_ready: bool) -> None:
        """Count the death of a worker, in total and for each game that it played.

        Raises:
            RunError: workers die repeatedly, or every worker that plays a certain game dies.
        """
        self._deaths += 1
        self._early_deaths += not was_ready
        for game in slot.leases.values():
            game.deaths += 1
            game.deaths_alone += slot.is_testing_suspect
            if game.deaths_alone >= MAX_DEATHS_ALONE:
                job = game.job
                raise RunError(
                    f"{game.deaths} worker processes died while they played rollout {job.rollout_id} "
                    f"({job.datapoint.id}, repeat {job.repeat}), {MAX_DEATHS_ALONE} of them only that rollout; the "
                    f"last {exit_reason}. {ANSWERS_ARE_SAVED}. Check that datapoint, or repeat the command with "
                    "~execution to play in one process and see the error"
                )
        for deaths, limit, details in (
            (self._early_deaths, self._max_early_deaths, "before they were ready for a game"),
            (self._deaths, self._max_deaths, "and no game was finished"),
        ):
            if deaths >= limit:
                raise RunError(
                    f"{deaths} worker processes died in a row, {details}; the last {exit_reason}. "
                    f"{ANSWERS_ARE_SAVED}. If memory is short, lower the number of workers or rollouts.concurrency; "
                    "otherwise repeat the command with ~execution to play in one process and see the error"
                )
