"""The log of a tournament's rounds. A round is on disk before its games start, so a killed tournament resumes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runner.base.async_runner import run_sync
from runner.base.errors import JournalError
from runner.base.storage import format_versions
from runner.base.storage.format_versions import STAGE_LOG
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import check_log_format, read_journal
from runner.results.folder import RunFolder

_FIRST_RECORD, _ROUND = "begun", "round"
Round = Mapping[int, int]
"""For each pairing of a round, by its index in the plan: how many datapoints it has played when the round has ended."""


@dataclass(frozen=True)
class RoundLog:
    """The rounds of a tournament in progress, oldest first. A round is on disk when `add` returns."""

    rounds: list[Round]
    journal: Journal

    def add(self, planned: Round) -> None:
        """Append a round that is about to be played.

        Raises:
            JournalError: the record could not be written.
        """
        self.journal.append_now({"stage": _ROUND, "pairings": [[index, count] for index, count in planned.items()]})
        self.rounds.append(planned)


def read_rounds(folder: Path, identity: str | None = None) -> list[Round]:
    """Return the rounds that have started; none if the log is missing. `identity` is the tournament's.

    Raises:
        JournalError: the log is damaged or belongs to another run.
        NewerFormatError: a newer version of nip-run wrote the log.
    """
    path = folder / STAGE_LOG
    if not path.is_file():
        return []
    check_log_format(path, identity)
    records = [record for _, record in read_journal(path)]
    try:
        return [dict(record["pairings"]) for record in records if record.get("stage") == _ROUND]
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{path}: a round has no list of pairings; restore the log from a backup") from error


@contextmanager
def round_log(folder: RunFolder, identity: str) -> Iterator[RoundLog]:
    """Open the log of a tournament, and write its first record if it is new. `identity` is the tournament's.

    Raises:
        JournalError: the log is damaged, belongs to another run, or cannot be written.
        NewerFormatError: a newer version of nip-run wrote the log.
    """
    rounds = read_rounds(folder.path, identity)
    first = {"stage": _FIRST_RECORD, "format": format_versions.LOG_FORMAT, "run": identity, "run_id": folder.run_id}
    is_new = not folder.stage_log.is_file() or not folder.stage_log.stat().st_size
    journal = Journal(folder.stage_log, run=identity)
    try:
        if is_new:
            journal.append_now(first)
        yield RoundLog(rounds, journal)
    finally:
        run_sync(journal.close)


def datapoints_played(rounds: list[Round]) -> dict[int, int]:
    """Return the number of datapoints of each pairing that has started, by the pairing's index."""
    played: dict[int, int] = {}
    for planned in rounds:
        for index, count in planned.items():
            played[index] = max(count, played.get(index, 0))
    return played
