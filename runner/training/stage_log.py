"""What a training run has done: a log of its stages, and the models that it has come to."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.aio import run_sync
from runner.documents.fields import from_plain, to_plain
from runner.errors import JournalError
from runner.models.settings import FineTuneStep, ModelSettings
from runner.storage.journal import Journal, read_journal

BEGUN, PLAYED, TESTED, DATASETS, JOB, WAITED, JOB_ENDED, TRAINED, SWITCHED = (
    "begun", "played", "tested", "datasets", "job", "waited", "ended", "trained", "switched",
)  # fmt: skip
TOO_FEW = "too_few_examples"

LOG = "stages.jsonl"
ITERATIONS = "iterations"
"""The folder of the datasets and of what trainers leave, in a folder for each iteration."""

Record = Mapping[str, Any]


@dataclass(frozen=True)
class Stages:
    """The records of a training run, the oldest first."""

    records: list[Record]

    def find(self, stage: str, iteration: int, **facts: Any) -> Iterator[Record]:
        """The records of a stage of an iteration, the oldest first."""
        wanted = {"stage": stage, "iteration": iteration, **facts}
        return (record for record in self.records if all(record.get(k) == v for k, v in wanted.items()))

    def one(self, stage: str, iteration: int, **facts: Any) -> Record | None:
        """The last such record."""
        return next(reversed(list(self.find(stage, iteration, **facts))), None)

    @property
    def token(self) -> str:
        """What tells this run from others of its id; the same in every process."""
        return str(self.all(BEGUN)[0]["token"])

    def all(self, stage: str) -> list[Record]:
        """The records of a stage, of all iterations."""
        return [record for record in self.records if record["stage"] == stage]


@dataclass(frozen=True)
class StageLog(Stages):
    """The records as they are made, each on disk when `add` returns, and read back after a kill at any moment."""

    journal: Journal

    def add(self, stage: str, iteration: int, **facts: Any) -> None:
        """Keep what was done.

        Raises:
            JournalError: it could not be written.
        """
        record = {"stage": stage, "iteration": iteration, **facts}
        self.journal.append_now(record)
        self.records.append(record)


def read_stages(folder: Path) -> Stages:
    """The stages of the run in a folder; none where it has not begun.

    Raises:
        JournalError: the log is damaged, or gone although the run has datasets, so that it had begun.
    """
    path, wrong = folder / LOG, "gone"
    records: list[Record] = []
    if path.is_file():
        wrong = "damaged"
        # Not the journal's own advice, to cut what is damaged: what is cut off here is trained once more.
        with suppress(JournalError):
            records = [record for _, record in read_journal(path)]
    if not records and (folder / ITERATIONS).exists():
        raise JournalError(
            f"{path}, which says what jobs there are, is {wrong}, though the run has built datasets. Restore it from a "
            "backup, or begin anew with --again: a new log in its place would have every model trained, and paid for, "
            "once more"
        )
    return Stages(records)


@contextmanager
def stage_log(folder: Path) -> Iterator[StageLog]:
    """The log of a run's stages, open; begun where there is none.

    Raises:
        JournalError: see `read_stages`; or it cannot be written.
    """
    records = read_stages(folder).records
    journal = Journal(folder / LOG)
    try:
        stages = StageLog(records, journal)
        if not records:
            # What tells this run's jobs from those of a run of the same id in another folder.
            stages.add(BEGUN, -1, token=secrets.token_hex(8))
        yield stages
    finally:
        run_sync(journal.close)


def models_after(models: Mapping[str, ModelSettings], switched: Record) -> dict[str, ModelSettings]:
    """The models that a switch led to."""
    result = dict(models)
    for group, state in switched["models"].items():
        lineage = tuple(from_plain(FineTuneStep, step) for step in state["lineage"])
        result[group] = replace(result[group], model=state["model"], base_model=state["base_model"], lineage=lineage)
    return result


def state_of(settings: ModelSettings) -> dict[str, Any]:
    """A model as the log has it: its name, what it began as, and every training since."""
    return {
        "model": settings.name,
        "base_model": settings.base_model or settings.name,
        "lineage": to_plain(settings.lineage),
    }
