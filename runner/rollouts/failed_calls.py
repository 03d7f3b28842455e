"""The failed attempts behind a rollout, kept until its rows are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.models.interface import SampleKey
from runner.models.journal_records import FailureRecord
from runner.rollouts.job import Job
from runner.rollouts.rollout import Call, usage_fields


def failed_call(record: FailureRecord, model: str) -> Call:
    """A failed attempt that a journal has, of a model of this name."""
    sample = record.sample
    used = {} if record.usage is None else usage_fields(record.usage)
    return Call(sample.round, sample.agent, sample.attempt, model, error=record.error, vote=sample.vote, **used)


class FailedCalls:
    """What failed in this process, by rollout, behind what `earlier` says of the processes before it."""

    def __init__(self, earlier: Callable[[Job], Sequence[Call]] = lambda _: ()) -> None:
        self._earlier = earlier
        self._failed: dict[tuple[str, int], list[Call]] = {}

    def add(self, sample: SampleKey, call: Call) -> None:
        """Keep one failed attempt."""
        self._failed.setdefault((sample.datapoint, sample.repeat), []).append(call)

    def take(self, job: Job) -> list[Call]:
        """The failed attempts of a rollout, which is finished."""
        return [*self._earlier(job), *self._failed.pop((job.datapoint.id, job.number), ())]
