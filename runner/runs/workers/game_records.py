"""The writer's access to the journal: appends the records of all workers, and finds the records of a leased game.

The writer is the main process of a run with workers. It leases each game to one worker, together with the game's
records that are already in the journal, from an earlier process or a worker that died.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from runner.base.errors import TransientError
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import Unnumbered, read_journal
from runner.models.interface import SampleKey
from runner.models.journal_records import CallRecord
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Accounting
from runner.runs.workers.leases import GameKey, LeasedGame, game_key_of_job, game_key_of_sample
from runner.runs.workers.messages import Append, Record


class GameRecordStore:
    """Appends records to the journal, and remembers the offsets of the records of unfinished games."""

    def __init__(self, plan: Plan, journal: Journal, accounting: Accounting) -> None:
        self._plan, self._journal, self._accounting = plan, journal, accounting
        self._offsets: dict[GameKey, list[int]] = {}
        self.answered_model_groups: set[str] = set()
        """The model groups with answers in the journal when the run started."""

    def load(self, path: Path) -> None:
        """Read the records that earlier processes wrote to the journal."""
        for offset, record in read_journal(path):
            if "sample" in record:
                key = game_key_of_sample(self._plan, *record["sample"][:2])
                self._offsets.setdefault(key, []).append(offset)
                # A record with "of" has no answer of its own. It refers to another record's answer.
                if record["kind"] == CallRecord.KIND and "of" not in record:
                    self.answered_model_groups.add(self._plan.group_of(SampleKey(*record["sample"])))

    async def append(self, appends: Sequence[Append], on_recorded: Callable[[SampleKey], None]) -> None:
        """Write records to disk, then call `on_recorded` with the sample of each.

        Raises:
            JournalError: the records cannot be written.
        """
        self._remember(appends, await self._journal.append_all(_record_groups(appends)))
        for append in appends:
            for sample in append.samples:
                on_recorded(SampleKey(*sample))

    def append_now(self, appends: Sequence[Append]) -> None:
        """Write records synchronously, without waiting for the disk. This is for calls that cost nothing.

        Raises:
            JournalError: the records cannot be written.
        """
        self._remember(appends, self._journal.append_all_now(_record_groups(appends)))

    def _remember(self, appends: Sequence[Append], offsets: Sequence[Sequence[int]]) -> None:
        """Store the offsets of the records, and count the failed attempts among these records."""
        next_offsets = (offset for group in offsets for offset in group)
        for append in appends:
            for sample in append.samples:
                key = game_key_of_sample(self._plan, sample[0], sample[1])
                self._offsets.setdefault(key, []).append(next(next_offsets))
            for error in append.errors:
                self._accounting.count_failure(TransientError(error))

    def records_for(self, game: LeasedGame, sent_datapoints: set[str]) -> list[Record]:
        """Return the records that a worker needs to play a game.

        If games share calls, these are the records of all games of the datapoint, and the datapoint is added to
        `sent_datapoints`. The result is empty for a datapoint in this set, because the worker already has its records.
        """
        if self._plan.games_share_calls:
            if game.job.datapoint.id in sent_datapoints:
                return []
            sent_datapoints.add(game.job.datapoint.id)
        offsets = self._offsets.get(game_key_of_job(self._plan, game.job), ())
        return [self._journal.record(offset) for offset in offsets]

    def forget(self, game: LeasedGame) -> None:
        """Forget the records of a game that has ended."""
        if not self._plan.games_share_calls:
            self._offsets.pop(game_key_of_job(self._plan, game.job), None)


def _record_groups(appends: Sequence[Append]) -> list[Sequence[Unnumbered]]:
    return [group for append in appends for group in append.record_groups]
