"""The interface of fine-tuning backends. A backend submits each job once, and its caller polls it until its end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

Method = Literal["sft", "dpo"]

JobNote = Mapping[str, Any]
"""Data about a job that a backend saves for later processes, such as its id at the provider."""

SaveNote = Callable[[JobNote], None]
"""Saves a note, which is on disk when the call returns."""

JobHandle = Mapping[str, Any]
"""The data that identifies a job for `Backend.poll`."""


@dataclass(frozen=True)
class FineTuneJob:
    """A fine-tuning job, which trains a model group on a dataset."""

    key: str
    """A key that is unique among all jobs of all runs, and the same after a resume."""
    group: str
    method: Method
    base_model: str
    """The model that the job starts from."""
    dataset: Path
    dataset_sha256: str
    folder: Path
    """The existing folder for the job's logs and the trainer's files."""
    seed: int
    name: str
    """The name of the experiment, for suffixes and titles."""
    earlier_models: frozenset[str] = frozenset()
    """The names that the group's model has had so far. The trained model must have a new name."""
    other_models: frozenset[str] = frozenset()
    """The names of the models that other groups at the same servers have had so far, which must not be used either."""
    replaces: tuple[JobNote, ...] = ()
    """The notes of the failed or canceled jobs that this job replaces."""


class JobState(StrEnum):
    """The state of a job. All states except RUNNING and WAITING are final."""

    RUNNING = "running"
    WAITING = "waiting"
    """The user must train the model by hand."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class JobStatus:
    """The result of a poll: the state, the new model's name if the job has succeeded, and a message."""

    state: JobState
    model: str | None = None
    message: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Facts to record, such as the provider's status and the number of trained tokens."""

    @property
    def has_ended(self) -> bool:
        """Whether the state is final."""
        return self.state not in (JobState.RUNNING, JobState.WAITING)


class Backend(Protocol):
    """Submits jobs and polls them."""

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], save_note: SaveNote) -> JobHandle:
        """Submit a job unless it was already submitted, and return its handle for `poll`.

        `notes` are the notes saved for this job so far, by this process or an earlier one. An earlier process may have
        been killed at any moment, even between the creation of the job at the provider and its call of `save_note`.
        Repeated calls create only one job. If this job has failed or was canceled, it is not replaced; `poll` reports
        its state.

        Raises:
            ProviderRefusal: the provider rejects the API key, the billing, the model or this kind of job.
            RunError: the job cannot be submitted.
        """
        ...

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """Return the current status of a job.

        Raises:
            ProviderRefusal, RunError: the status cannot be determined, and a retry would not help.
        """
        ...
