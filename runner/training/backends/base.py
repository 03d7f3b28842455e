"""What a fine-tune backend is to the rest: a job is begun once, and looked at until it has ended."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, Protocol

Method = Literal["sft", "dpo"]

Note = Callable[[Mapping[str, Any]], None]
"""Keeps a fact about a job; it is on disk when this returns."""


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
    had: frozenset[str] = frozenset()
    """The models that the group has played with so far: what comes out is called otherwise."""
    ended: tuple[Mapping[str, Any], ...] = ()
    """What was noted about the jobs that this one takes the place of: they failed or were cancelled."""


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
    """What one look at a job found: the new model's name where it has succeeded, and a line for people."""

    state: JobState
    model: str | None = None
    message: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    """What is worth keeping, such as the provider's status and the number of trained tokens."""

    @property
    def has_ended(self) -> bool:
        return self.state not in (JobState.RUNNING, JobState.WAITING)


class Backend(Protocol):
    """Begins jobs, and looks at them."""

    def submit(self, job: FineTuneJob, known: Sequence[Mapping[str, Any]], note: Note) -> Mapping[str, Any]:
        """Begin a job, unless it was begun already; what to look at it by.

        `known` is what was noted about this job before, by this process or one that was killed at any moment: between
        the provider's creating of a job and our noting of it, too. However often this is called, one job is created: a
        noted one that has failed or was cancelled is not replaced here, but found by `poll`.

        Raises:
            ProviderRefusal: the backend refuses to serve us: key, billing, unknown model, no more jobs of this kind.
            RunError: the job cannot be begun; the message says what to do.
        """
        ...

    def poll(self, job: FineTuneJob, handle: Mapping[str, Any]) -> JobStatus:
        """How the job stands now.

        Raises:
            ProviderRefusal, RunError: nobody can say, and asking again will not help.
        """
        ...
