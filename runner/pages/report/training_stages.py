"""Describes the stages of a training run, in order."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.text import counted
from runner.training.stages import (
    DatasetsBuilt,
    GamesPlayed,
    JobEnded,
    JobNoted,
    JobWaited,
    ModelSwitch,
    StageRecord,
    Stages,
    TestPlayed,
    TrainingEnded,
)


def stage_rows(stages: Stages) -> list[tuple[int, str, str]]:
    """Return the iteration, the model group (or "") and the description of each stage."""
    return [
        (record.iteration, getattr(record, "group", ""), description)
        for record in stages.records
        for description in _descriptions(record)
    ]


def _descriptions(record: StageRecord) -> Iterator[str]:
    match record:
        case TestPlayed():
            yield f"test played: {record.run_id}"
        case GamesPlayed():
            yield f"games played: {record.run_id}"
        case DatasetsBuilt():
            for group, report in record.groups.items():
                reason = f", not written: {report.why_not_written}" if report.why_not_written else ""
                yield f"dataset of {group}: {counted(report.examples, 'example')}, {report.format}{reason}"
        case JobNoted():
            yield f"job of {record.backend} (attempt {record.attempt})"
        case JobWaited():
            yield "waiting for a model that the user trains"
        case JobEnded():
            yield f"job {record.state}: {record.message}"
        case TrainingEnded():
            yield f"trained: {record.model}"
        case ModelSwitch():
            yield "next iteration: " + ", ".join(
                f"{name} plays {state['model']}" for name, state in record.models.items()
            )
