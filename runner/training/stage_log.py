"""The log of a training run's stages: each record is on disk before the next stage begins."""

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
"""The folder of the datasets and of what trainers leave, in a folder for each iteration."""
OUTPUT = "output"
"""The folder of what a job has made, in its own."""


def iteration_folder(folder: RunFolder, iteration: int) -> Path:
    """Where an iteration's datasets are, and what trainers leave."""
    return folder.path / ITERATIONS / str(iteration)


def job_folder(folder: RunFolder, iteration: int, group: str) -> Path:
    """The folder of a group's job, whichever of an iteration it is."""
    return iteration_folder(folder, iteration) / f"{group}.job"


def output_of(folder: RunFolder, iteration: int, group: str) -> Path:
    """Where a trainer of one's own leaves what it made."""
    return job_folder(folder, iteration, group).absolute() / OUTPUT


@dataclass(frozen=True)
class StageLog(Stages):
    """The records as they are made, each on disk when `add` returns, and read back after a kill at any moment."""

    journal: Journal

    def add(self, record: StageRecord) -> None:
        """Keep what was done.

        Raises:
            JournalError: it could not be written.
        """
        self.journal.append_now(record.to_plain())
        self.records.append(record)


def read_stages(folder: Path, run: str | None = None) -> Stages:
    """The stages of the run in a folder, with this identity; none where it has not begun.

    Raises:
        JournalError: the log is damaged, or of another run, or gone although the run has datasets, so that it had
            begun.
        NewerFormatError: a newer nip-run wrote it.
    """
    path, wrong = folder / STAGE_LOG, "gone"
    records: list[dict[str, Any]] = []
    if path.is_file():
        wrong = "damaged"
        check_log_format(path, run)
        # Not the journal's own advice, to cut what is damaged: what is cut off here is trained once more.
        with suppress(JournalError):
            records = [record for _, record in read_journal(path)]
    if not records and (folder / ITERATIONS).exists():
        raise JournalError(
            f"{path}, which says what jobs there are, is {wrong}, though the run has built datasets. Restore it from a "
            "backup, or start over with --again: a new log in its place would have every model trained, and paid for, "
            "once more"
        )
    return Stages([_parsed(record, path) for record in records if record.get("stage") in RECORDS])


def _parsed(record: dict[str, Any], path: Path) -> StageRecord:
    try:
        return RECORDS[record["stage"]].parse(record)
    except (KeyError, TypeError) as error:
        raise JournalError(
            f"{path}: record {record['seq']} of stage {record['stage']!r} lacks a key: {error}. Was it written by "
            "another version of nip-run? Use that one"
        ) from error


@contextmanager
def stage_log(folder: RunFolder, run: str) -> Iterator[StageLog]:
    """The log of the stages of the run with this identity, open; begun where there is none.

    Raises:
        JournalError: see `read_stages`; or it cannot be written.
    """
    records = read_stages(folder.path, run).records
    journal = Journal(folder.stage_log, run=run)
    try:
        stages = StageLog(records, journal)
        if not records:
            # What tells this run's jobs from those of a run of the same id in another folder.
            token = secrets.token_hex(8)
            stages.add(RunBegun(token=token, format=format_versions.LOG_FORMAT, run=run, run_id=folder.run_id))
        yield stages
    finally:
        run_sync(journal.close)
