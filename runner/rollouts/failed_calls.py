"""Finds the failed calls of each rollout, for the rollout's rows in the tables.

The calls failed in this process, or in an earlier process that recorded them in the journal.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.models.interface import SampleKey
from runner.models.journal_records import FailureRecord
from runner.rollouts.job import Job
from runner.rollouts.plan import Plan
from runner.rollouts.rollout import Call, usage_fields


def call_from_failure(record: FailureRecord, model: str) -> Call:
    """Convert a journal's record of a failed call to a `Call`. `model` is the name of the model."""
    sample = record.sample
    tokens = {} if record.usage is None else usage_fields(record.usage)
    return Call(
        sample.round, sample.agent, sample.attempt, model, error=record.error, vote=sample.vote, paid=record.is_paid,
        **tokens,
    )  # fmt: skip


def failed_calls_finder(
    plan: Plan, failures: Callable[[str, int], Sequence[FailureRecord]]
) -> Callable[[Job], Sequence[Call]]:
    """Return a function that returns the failed calls of a rollout.

    `failures` returns the records of failed calls by datapoint id and rollout number.
    """
    models = plan.spec.experiment.models

    def find(job: Job) -> list[Call]:
        failed = failures(job.datapoint.id, job.number)
        return [call_from_failure(record, models[plan.group_of(record.sample)].name) for record in failed]

    return find


class FailedCalls:
    """The failed calls of each rollout. `earlier` returns those of earlier processes."""

    def __init__(self, earlier: Callable[[Job], Sequence[Call]] = lambda _: ()) -> None:
        self._earlier = earlier
        self._failed: dict[tuple[str, int], list[Call]] = {}

    def add(self, sample: SampleKey, call: Call) -> None:
        """Store one failed call."""
        self._failed.setdefault((sample.datapoint, sample.repeat), []).append(call)

    def take(self, job: Job) -> list[Call]:
        """Return the failed calls of a finished rollout, and remove them here."""
        return [*self._earlier(job), *self._failed.pop((job.datapoint.id, job.number), ())]
