"""What a training run has done: a log of its stages, and the models that it has come to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.documents.fields import build, plain
from runner.journal import Journal
from runner.models.settings import ModelSettings, Trained

BEGUN, PLAYED, TESTED, DATASETS, JOB, WAITED, ENDED, TRAINED, SWITCHED = (
    "begun", "played", "tested", "datasets", "job", "waited", "ended", "trained", "switched",
)  # fmt: skip
TOO_FEW = "too_few_examples"

Record = Mapping[str, Any]


@dataclass
class StageLog:
    """The records of a training run, each on disk when `add` returns, and read back after a kill at any moment."""

    journal: Journal
    records: list[Record] = field(default_factory=list)

    def add(self, stage: str, iteration: int, **facts: Any) -> None:
        """Keep what was done.

        Raises:
            JournalError: it could not be written.
        """
        record = {"stage": stage, "iteration": iteration, **facts}
        self.journal.append_now(record)
        self.records.append(record)

    def find(self, stage: str, iteration: int, **facts: Any) -> Iterator[Record]:
        """The records of a stage of an iteration, the oldest first."""
        wanted = {"stage": stage, "iteration": iteration, **facts}
        return (record for record in self.records if all(record.get(k) == v for k, v in wanted.items()))

    def one(self, stage: str, iteration: int, **facts: Any) -> Record | None:
        """The last such record."""
        return next(reversed(list(self.find(stage, iteration, **facts))), None)


def models_after(models: Mapping[str, ModelSettings], switched: Record) -> dict[str, ModelSettings]:
    """The models that a switch led to."""
    result = dict(models)
    for group, state in switched["models"].items():
        lineage = tuple(build(Trained, step) for step in state["lineage"])
        result[group] = replace(result[group], model=state["model"], base_model=state["base_model"], lineage=lineage)
    return result


def state_of(settings: ModelSettings) -> dict[str, Any]:
    """A model as the log has it: its name, what it began as, and every training since."""
    return {
        "model": settings.name,
        "base_model": settings.base_model or settings.name,
        "lineage": plain(settings.lineage),
    }


def log_path(folder: Path) -> Path:
    return folder / "stages.jsonl"
