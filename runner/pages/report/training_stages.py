"""The stages of a training run, in the order in which they were done, in words."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.text import counted
from runner.training.stages import (
    DatasetsBuilt,
    GamesPlayed,
    JobEnded,
    JobNoted,
    StageRecord,
    Stages,
    Switched,
    TestPlayed,
    TrainingEnded,
    Waited,
)


def stage_rows(stages: Stages) -> list[tuple[int, str, str]]:
    """Return what was done, each with its iteration and the model group that it concerns, if any."""
    return [
        (record.iteration, getattr(record, "group", ""), what) for record in stages.records for what in _words(record)
    ]


def _words(record: StageRecord) -> Iterator[str]:
    match record:
        case TestPlayed():
            yield f"test played: {record.run_id}"
        case GamesPlayed():
            yield f"games played: {record.run_id}"
        case DatasetsBuilt():
            for group, report in record.groups.items():
                why = f", not written: {report.why_not_written}" if report.why_not_written else ""
                yield f"dataset of {group}: {counted(report.examples, 'example')}, {report.format}{why}"
        case JobNoted():
            yield f"job of {record.backend} (attempt {record.attempt})"
        case Waited():
            yield "waits for a model that the user trains"
        case JobEnded():
            yield f"job {record.state}: {record.message}"
        case TrainingEnded():
            yield f"trained: {record.model}"
        case Switched():
            yield "next iteration: " + ", ".join(
                f"{name} plays {state['model']}" for name, state in record.models.items()
            )
