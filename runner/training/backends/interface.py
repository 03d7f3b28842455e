"""What a fine-tune backend is to the rest: a job is submitted once and polled until it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

Method = Literal["sft", "dpo"]

JobNote = Mapping[str, Any]
"""What a backend keeps of a job from one process to the next, such as its id at the provider."""

KeepNote = Callable[[JobNote], None]
"""Keeps a note; it is on disk when this returns."""

JobHandle = Mapping[str, Any]
"""What a job is polled by."""


@dataclass(frozen=True)
class FineTuneJob:
    """One job: which model is trained on which file. `folder` is the job's own, for logs and what a trainer writes."""

    key: str
    """Unique among all jobs of all runs, and the same after a resume."""
    group: str
    method: Method
    base_model: str
    dataset: Path
    dataset_sha256: str
    folder: Path
    seed: int
    name: str
    """What the run calls it, for suffixes and titles."""
    earlier_models: frozenset[str] = frozenset()
    """The names that the group's model has had so far: what comes out has another."""
    replaces: tuple[JobNote, ...] = ()
    """The notes of the jobs in whose place this one is submitted: they failed or were cancelled."""


class JobState(StrEnum):
    """How a job stands. What is not RUNNING or WAITING has ended."""

    RUNNING = "running"
    WAITING = "waiting"
    """For the user: nothing more happens by itself."""
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass(frozen=True)
class JobStatus:
    """What a poll found: the new model's name where the job has succeeded, and a line for people."""

    state: JobState
    model: str | None = None
    message: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is worth keeping, such as the provider's status and the number of trained tokens."""

    @property
    def has_ended(self) -> bool:
        return self.state not in (JobState.RUNNING, JobState.WAITING)


class Backend(Protocol):
    """Submits jobs and polls them."""

    def submit(self, job: FineTuneJob, notes: Sequence[JobNote], keep: KeepNote) -> JobHandle:
        """Submit a job, unless that was done already.

        `notes` are those kept of this job before, by this process or one that was killed at any moment: also after the
        provider had created the job and before `keep` was called. However often this is called, one job is created:
        one that was noted and has failed or was cancelled is not replaced here, but found by `poll`.

        Raises:
            ProviderRefusal: the backend refuses to serve us: key, billing, unknown model, no more jobs of this kind.
            RunError: the job cannot be submitted; the message says what to do.
        """
        ...

    def poll(self, job: FineTuneJob, handle: JobHandle) -> JobStatus:
        """How the job stands now.

        Raises:
            ProviderRefusal, RunError: its status cannot be known, and asking again will not help.
        """
        ...
