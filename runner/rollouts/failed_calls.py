"""The failed attempts of a rollout, stored until its rows are written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.models.interface import SampleKey
from runner.models.journal_records import FailureRecord
from runner.rollouts.job import Job
from runner.rollouts.rollout import Call, usage_fields


def failed_call(record: FailureRecord, model: str) -> Call:
    """Return the call for a journal's record of a failed attempt; `model` is the name of the model."""
    sample = record.sample
    tokens = {} if record.usage is None else usage_fields(record.usage)
    return Call(sample.round, sample.agent, sample.attempt, model, error=record.error, vote=sample.vote, **tokens)


class FailedCalls:
    """The failed attempts by rollout: those of this process, after those of `earlier` processes."""

    def __init__(self, earlier: Callable[[Job], Sequence[Call]] = lambda _: ()) -> None:
        self._earlier = earlier
        self._failed: dict[tuple[str, int], list[Call]] = {}

    def add(self, sample: SampleKey, call: Call) -> None:
        """Store one failed attempt."""
        self._failed.setdefault((sample.datapoint, sample.repeat), []).append(call)

    def take(self, job: Job) -> list[Call]:
        """Remove and return the failed attempts of a finished rollout."""
        return [*self._earlier(job), *self._failed.pop((job.datapoint.id, job.number), ())]
