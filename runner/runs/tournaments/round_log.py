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

_STARTED, _ROUND = "begun", "round"
Round = Mapping[int, int]
"""The number of datapoints that each pairing of a round has played after it, by the pairing's number in the plan."""


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
        self.journal.append_now({"stage": _ROUND, "pairings": [[number, count] for number, count in planned.items()]})
        self.rounds.append(planned)


def read_rounds(folder: Path, run: str | None = None) -> list[Round]:
    """Return the rounds that have started; none if the log is missing. `run` is the identity of the tournament.

    Raises:
        JournalError: the log is damaged or belongs to another run.
        NewerFormatError: a newer nip-run wrote the log.
    """
    path = folder / STAGE_LOG
    if not path.is_file():
        return []
    check_log_format(path, run)
    records = [record for _, record in read_journal(path)]
    try:
        return [dict(record["pairings"]) for record in records if record.get("stage") == _ROUND]
    except (KeyError, TypeError, ValueError) as error:
        raise JournalError(f"{path}: a round has no list of pairings; restore the log from a backup") from error


@contextmanager
def round_log(folder: RunFolder, run: str) -> Iterator[RoundLog]:
    """Open the log of a tournament, and write its first record if it is new. `run` is the tournament's identity.

    Raises:
        JournalError: the log cannot be written, or see `read_rounds`.
    """
    rounds = read_rounds(folder.path, run)
    first = {"stage": _STARTED, "format": format_versions.LOG_FORMAT, "run": run, "run_id": folder.run_id}
    is_new = not folder.stage_log.is_file() or not folder.stage_log.stat().st_size
    journal = Journal(folder.stage_log, run=run)
    try:
        if is_new:
            journal.append_now(first)
        yield RoundLog(rounds, journal)
    finally:
        run_sync(journal.close)


def datapoints_played(rounds: list[Round]) -> dict[int, int]:
    """Return the number of datapoints of each pairing that has started, by the pairing's number."""
    played: dict[int, int] = {}
    for planned in rounds:
        for number, count in planned.items():
            played[number] = max(count, played.get(number, 0))
    return played
