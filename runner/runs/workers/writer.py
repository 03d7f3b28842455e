"""The writer's journal: records of all workers in, those of a game out again for whoever plays it next."""

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
from runner.runs.workers.leases import Leased
from runner.runs.workers.messages import Append, Record
from runner.runs.workers.record_keys import Game, game_of_job, game_of_sample


class OpenGames:
    """The records of the games that are not over, by where they stand."""

    def __init__(self, plan: Plan, journal: Journal, accounting: Accounting) -> None:
        self._plan, self._journal, self._accounting = plan, journal, accounting
        self._offsets: dict[Game, list[int]] = {}
        self.answered: set[str] = set()
        """The model groups that gave an answer, by the journal."""

    def read(self, path: Path) -> None:
        """Take in what the journal has from earlier processes."""
        for offset, record in read_journal(path):
            if "sample" in record:
                self._offsets.setdefault(self._game(record), []).append(offset)
                if record["kind"] == CallRecord.KIND and "of" not in record:
                    self.answered.add(self._plan.group_of(SampleKey(*record["sample"])))

    def _game(self, record: Record) -> Game:
        return game_of_sample(self._plan, *record["sample"][:2])

    async def append(self, appends: Sequence[Append], settled: Callable[[SampleKey], None]) -> None:
        """Write records; they are on disk when this returns. `settled` is told of each call that has one then.

        Raises:
            JournalError: they could not be written.
        """
        self._wrote(appends, await self._journal.append_all(_groups(appends)))
        for append in appends:
            for sample in append.samples:
                settled(SampleKey(*sample))

    def append_now(self, appends: Sequence[Append]) -> None:
        """Write records of calls that cost nothing, which the system flushes when it likes. Raises as `append`."""
        self._wrote(appends, self._journal.append_all_now(_groups(appends)))

    def _wrote(self, appends: Sequence[Append], offsets: Sequence[Sequence[int]]) -> None:
        """Remember where they stand."""
        places = (place for group in offsets for place in group)
        for append in appends:
            for sample in append.samples:
                game = game_of_sample(self._plan, sample[0], sample[1])
                self._offsets.setdefault(game, []).append(next(places))
            for error in append.failures:
                self._accounting.failed(TransientError(error))

    def of(self, leased: Leased, known: set[str]) -> list[Record]:
        """What the journal has of a game; where games share calls, of all games of its datapoint.

        Of those in `known`, a worker's, nothing: it has them already.
        """
        if self._plan.shares_between_games:
            if leased.job.datapoint.id in known:
                return []
            known.add(leased.job.datapoint.id)
        offsets = self._offsets.get(game_of_job(self._plan, leased.job), ())
        return [self._journal.record(offset) for offset in offsets]

    def over(self, leased: Leased) -> None:
        """A game is over: its records are asked for no more."""
        if not self._plan.shares_between_games:
            self._offsets.pop(game_of_job(self._plan, leased.job), None)


def _groups(appends: Sequence[Append]) -> list[Sequence[Unnumbered]]:
    return [group for append in appends for group in append.groups]
