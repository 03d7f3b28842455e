"""The log of a training run's stages; each record is on disk before the next stage starts."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from runner.base.async_runner import run_sync
from runner.base.errors import JournalError
from runner.base.storage import format_versions
from runner.base.storage.format_versions import STAGE_LOG
from runner.base.storage.journal import Journal
from runner.base.storage.log_lines import check_log_format, read_journal
from runner.results.folder import RunFolder
from runner.training.stages import RECORDS, RunBegun, StageRecord, Stages

ITERATIONS = "iterations"
"""The folder with a folder for each iteration, which has the datasets and the trainers' files."""
OUTPUT = "output"
"""The folder of a job's results, in the job's folder."""


def iteration_folder(folder: RunFolder, iteration: int) -> Path:
    """Return the folder of an iteration's datasets and trainers' files."""
    return folder.path / ITERATIONS / str(iteration)


def job_folder(folder: RunFolder, iteration: int, group: str) -> Path:
    """Return the folder of a group's jobs in an iteration; all attempts share it."""
    return iteration_folder(folder, iteration) / f"{group}.job"


def output_of(folder: RunFolder, iteration: int, group: str) -> Path:
    """Return the folder where a `command` trainer writes its results."""
    return job_folder(folder, iteration, group).absolute() / OUTPUT


@dataclass(frozen=True)
class StageLog(Stages):
    """The records of a running process; each is on disk when `add` returns, so it survives a kill at any moment."""

    journal: Journal

    def add(self, record: StageRecord) -> None:
        """Append a record.

        Raises:
            JournalError: it could not be written.
        """
        self.journal.append_now(record.to_plain())
        self.records.append(record)


def read_stages(folder: Path, run: str | None = None) -> Stages:
    """Return the stages of the run with this identity in a folder; empty if it has not started.

    Raises:
        JournalError: the log is damaged or belongs to another run, or it is missing although the run has datasets.
        NewerFormatError: a newer nip-run wrote it.
    """
    path, fault = folder / STAGE_LOG, "gone"
    records: list[dict[str, Any]] = []
    if path.is_file():
        fault = "damaged"
        check_log_format(path, run)
        # The journal's advice, to cut off the damaged part, is wrong here: what is cut off would be trained again.
        with suppress(JournalError):
            records = [record for _, record in read_journal(path)]
    if not records and (folder / ITERATIONS).exists():
        raise JournalError(
            f"{path}, the log of the run's training jobs, is {fault} although the run has built datasets. Restore it "
            "from a backup, or start over with --again: without it, every model would be trained and paid for again"
        )
    return Stages([_parse(record, path) for record in records if record.get("stage") in RECORDS])


def _parse(record: dict[str, Any], path: Path) -> StageRecord:
    try:
        return RECORDS[record["stage"]].parse(record)
    except (KeyError, TypeError) as error:
        raise JournalError(
            f"{path}: record {record['seq']} of stage {record['stage']!r} lacks a key: {error}. If another version of "
            "nip-run wrote it, use that version"
        ) from error


@contextmanager
def stage_log(folder: RunFolder, run: str) -> Iterator[StageLog]:
    """Open the stage log of the run with this identity, and start it if there is none.

    Raises:
        JournalError: it cannot be written, or see `read_stages`.
    """
    records = read_stages(folder.path, run).records
    journal = Journal(folder.stage_log, run=run)
    try:
        stages = StageLog(records, journal)
        if not records:
            # The token distinguishes this run's jobs from those of a run with the same id in another folder.
            token = secrets.token_hex(8)
            stages.add(RunBegun(token=token, format=format_versions.LOG_FORMAT, run=run, run_id=folder.run_id))
        yield stages
    finally:
        run_sync(journal.close)
