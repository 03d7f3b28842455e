"""The interface of fine-tuning backends: a job is submitted once and polled until it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

Method = Literal["sft", "dpo"]

JobNote = Mapping[str, Any]
"""Data about a job that a backend saves for later processes, such as its id at the provider."""

KeepNote = Callable[[JobNote], None]
"""Saves a note; it is on disk when the call returns."""

JobHandle = Mapping[str, Any]
"""The data that identifies a job for `Backend.poll`."""


@dataclass(frozen=True)
class FineTuneJob:
    """A fine-tuning job: the model and the dataset. `folder` belongs to the job, for logs and the trainer's files."""

    key: str
    """A key that is unique among all jobs of all runs, and the same after a resume."""
    group: str
    method: Method
    base_model: str
    dataset: Path
    dataset_sha256: str
    folder: Path
    seed: int
    name: str
    """The name of the experiment, for suffixes and titles."""
    earlier_models: frozenset[str] = frozenset()
    """The names that the group's model has had so far; the trained model must have a new one."""
    replaces: tuple[JobNote, ...] = ()
    """The notes of the failed or canceled jobs that this one replaces."""


class JobState(StrEnum):
    """The state of a job; any state other than RUNNING and WAITING is final."""

    RUNNING = "running"
    WAITING = "waiting"
    """Waiting for the user."""
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
        return self.state not in (JobState.RUNNING, JobState.WAITING)


class Backend(Protocol):
    """Submits jobs and polls them."""

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        """Submit a job unless it was already submitted.

        `notes` are those saved for this job so far, by this process or an earlier one. The earlier one may have been
        killed at any moment, even after the provider created the job and before `keep` was called. Repeated calls
        create only one job. A job that was noted and has failed or was canceled is not replaced; `poll` reports it.

        Raises:
            ProviderRefusal: the backend refuses to serve us: key, billing, unknown model, no more jobs of this kind.
            RunError: the job cannot be submitted.
        """
        ...

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """Return the current status of a job.

        Raises:
            ProviderRefusal, RunError: the status cannot be determined, and a retry would not help.
        """
        ...
