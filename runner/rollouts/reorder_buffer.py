"""The buffer that passes rollouts on in the order of the plan, although games end in any order.

A session writes its files from these rollouts. The order makes the files the same for the same games.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Protocol

from runner.base.errors import RunError, os_errors_as
from runner.rollouts.job import Job
from runner.rollouts.rollout import Rollout

MAX_CHARACTERS_IN_MEMORY = 8 << 20
"""The maximum number of characters of answers that wait in memory.

A character takes up to four bytes. A game has each answer's text twice, because its messages also have the text.
"""


class CompactOutputs(Protocol):
    """The outputs of a job, which take less memory than its rollouts. They can be pickled."""

    @property
    def size(self) -> int:
        """The approximate size in characters."""
        ...


FinishedJob = Sequence[Rollout] | CompactOutputs
"""A job's rollouts, or the outputs built from them."""


class PlanOrderBuffer:
    """Passes the rollouts of each job to `sink` in the order of the plan. At most `window` jobs wait for their turn.

    Rollouts wait in memory up to `MAX_CHARACTERS_IN_MEMORY`, and beyond that in an unnamed temporary file in `folder`.
    """

    def __init__(self, sink: Callable[[FinishedJob], None], window: int, folder: Path) -> None:
        self._sink = sink
        self.window = window
        """The number of jobs that may wait. The caller may change this number at any time."""
        self._next = 0
        """The index of the job whose rollouts are passed on next."""
        self._waiting_jobs: dict[int, tuple[FinishedJob, int]] = {}
        """The jobs that wait in memory, each with its size in characters."""
        self._characters_in_memory = 0
        self._file = _RolloutFile(folder)
        self.has_ended = False
        """Whether `end` was called: no more rollouts are passed to `sink`."""

    def has_room(self, index: int) -> bool:
        """Return whether the job with this index may start, because it is among the next `window` jobs."""
        return index < self._next + self.window

    def put(self, index: int, rollouts: FinishedJob) -> None:
        """Accept a job's rollouts, and pass on all jobs whose turn has come.

        Raises:
            RunError: the rollouts cannot be written to the temporary file.
        """
        if index != self._next:
            self._store(index, rollouts)
            return
        ready: FinishedJob | None = rollouts
        while ready is not None and not self.has_ended:
            self._sink(ready)
            self._next += 1
            ready = self._take(self._next)

    def end(self) -> None:
        """Pass no more rollouts to `sink`."""
        self.has_ended = True

    def _store(self, index: int, rollouts: FinishedJob) -> None:
        size = sum(map(_text_length, rollouts)) if isinstance(rollouts, Sequence) else rollouts.size
        if self._characters_in_memory + size > MAX_CHARACTERS_IN_MEMORY:
            self._file.put(index, rollouts)
        else:
            self._characters_in_memory += size
            self._waiting_jobs[index] = (rollouts, size)

    def _take(self, index: int) -> FinishedJob | None:
        if index not in self._waiting_jobs:
            return self._file.take(index)
        rollouts, size = self._waiting_jobs.pop(index)
        self._characters_in_memory -= size
        return rollouts

    def close(self) -> None:
        """Close the temporary file, which deletes it."""
        self._file.close()


def _text_length(rollout: Rollout) -> int:
    return sum(
        len(text or "")
        for call in rollout.calls
        for text in (call.raw_message, call.reasoning, call.verdict_logprobs, call.error)
    )


class _StoredLocation(NamedTuple):
    """The location of one job's rollouts in the temporary file."""

    offset: int
    size: int
    jobs: Sequence[Job] | None
    """The job of each rollout, which stays in memory; None if the file has outputs instead of rollouts."""


_FIELDS = [field.name for field in fields(Rollout) if field.name != "job"]


class _RolloutFile:
    """Stores rollouts in a temporary file, which is created on first use and truncated when all rollouts are taken."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._stored: dict[int, _StoredLocation] = {}
        self._end = 0

    def put(self, index: int, rollouts: FinishedJob) -> None:
        jobs: Sequence[Job] | None = None
        content: Any = rollouts
        if isinstance(rollouts, Sequence):
            jobs = [rollout.job for rollout in rollouts]
            content = [[getattr(rollout, name) for name in _FIELDS] for rollout in rollouts]
        data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
        with self._write_errors():
            if self._file is None:
                self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by `close`
            self._file.seek(self._end)
            self._file.write(data)
            self._file.flush()
        self._stored[index] = _StoredLocation(self._end, len(data), jobs)
        self._end += len(data)

    def take(self, index: int) -> FinishedJob | None:
        """Remove and return a job's rollouts; None if they are not stored here."""
        location = self._stored.pop(index, None)
        if location is None or self._file is None:
            return None
        with self._write_errors():
            self._file.seek(location.offset)
            data = self._file.read(location.size)
            if not self._stored:
                self._file.truncate(0)
                self._end = 0
        content: Any = pickle.loads(data)  # noqa: S301 - this process wrote the data, and no other can open the file
        if location.jobs is None:
            outputs: CompactOutputs = content
            return outputs
        return [
            Rollout(job, **dict(zip(_FIELDS, values, strict=True)))
            for job, values in zip(location.jobs, content, strict=True)
        ]

    def _write_errors(self) -> AbstractContextManager[None]:
        return os_errors_as(
            RunError, f"cannot store finished rollouts in a temporary file in {self._folder}",
            ". Free space there or make the folder writable, and run the same command again. All paid answers are in "
            "the journal",
        )  # fmt: skip

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
