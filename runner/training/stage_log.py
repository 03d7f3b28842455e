"""The log of a training run's stages. Each record is on disk before the next stage starts.

The training loop resumes a run from this log, and summaries and pages read it.
"""

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
from runner.training.stages import RECORDS, RunStarted, StageRecord, Stages

ITERATIONS = "iterations"
"""The name of the folder with a subfolder for each iteration."""
OUTPUT = "output"
"""The name of the folder for a trainer's results, in the job's folder."""


def iteration_folder(folder: RunFolder, iteration: int) -> Path:
    """Return the folder with an iteration's datasets and the files of its trainers."""
    return folder.path / ITERATIONS / str(iteration)


def job_folder(folder: RunFolder, iteration: int, group: str) -> Path:
    """Return the folder for the jobs of a group in an iteration, which all attempts share."""
    return iteration_folder(folder, iteration) / f"{group}.job"


def output_folder(folder: RunFolder, iteration: int, group: str) -> Path:
    """Return the folder for the results of a `command` trainer."""
    return job_folder(folder, iteration, group).absolute() / OUTPUT


@dataclass(frozen=True)
class StageLog(Stages):
    """The stage records of a run in progress. A record is on disk when `add` returns."""

    journal: Journal

    def add(self, record: StageRecord) -> None:
        """Append a record.

        Raises:
            JournalError: the record could not be written.
        """
        self.journal.append_now(record.to_plain())
        self.records.append(record)


def read_stages(folder: Path, run: str | None = None) -> Stages:
    """Return the stage records of the run in a folder; empty if the run has not started. `run` is its identity.

    Raises:
        JournalError: the log is damaged or belongs to another run, or it is missing although the run has datasets.
        NewerFormatError: a newer version of nip-run wrote the log.
    """
    path, fault = folder / STAGE_LOG, "missing"
    records: list[dict[str, Any]] = []
    if path.is_file():
        fault = "damaged"
        check_log_format(path, run)
        # Do not raise the journal's own error: it advises to remove the damaged part, and the run would train again.
        with suppress(JournalError):
            records = [record for _, record in read_journal(path)]
    if not records and (folder / ITERATIONS).exists():
        raise JournalError(
            f"{path}, the log of the run's training jobs, is {fault} although the run has built datasets. Restore the "
            "log from a backup, or start over with --again: without the log, every model would be trained and paid for "
            "again"
        )
    return Stages([_parse(record, path) for record in records if record.get("stage") in RECORDS])


def _parse(record: dict[str, Any], path: Path) -> StageRecord:
    try:
        return RECORDS[record["stage"]].parse(record)
    except (KeyError, TypeError) as error:
        raise JournalError(
            f"{path}: record {record['seq']} of stage {record['stage']!r} lacks a key: {error}. If another version of "
            "nip-run wrote this log, use that version; otherwise restore the log from a backup"
        ) from error


@contextmanager
def stage_log(folder: RunFolder, run: str) -> Iterator[StageLog]:
    """Open the stage log of a run, and write its first record if it is new. `run` is the run's identity.

    Raises:
        JournalError: the log cannot be read or written, or belongs to another run.
    """
    records = read_stages(folder.path, run).records
    journal = Journal(folder.stage_log, run=run)
    try:
        stages = StageLog(records, journal)
        if not records:
            # The token distinguishes this run's jobs from those of a run with the same id in another folder.
            token = secrets.token_hex(8)
            stages.add(RunStarted(token=token, format=format_versions.LOG_FORMAT, run=run, run_id=folder.run_id))
        yield stages
    finally:
        run_sync(journal.close)
