"""The buffer that puts rollouts into the order of the plan."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, NamedTuple, Protocol

from runner.base.errors import RunError
from runner.rollouts.job import Job
from runner.rollouts.rollout import Rollout

HELD_CHARACTERS = 8 << 20
"""The number of characters of answers that may wait in memory.

A character takes up to four bytes, and the messages of a game repeat the text of its answers.
"""


class CompactOutputs(Protocol):
    """The outputs built from a job's rollouts, which replace the rollouts and can be pickled."""

    @property
    def size(self) -> int:
        """The approximate size in characters."""
        ...


FinishedJob = Sequence[Rollout] | CompactOutputs
"""A job's rollouts, or the outputs built from them."""


class PlanOrderBuffer:
    """Passes the rollouts of each job to `sink` in the order of the plan; at most `window` jobs wait for their turn.

    They wait in memory up to `HELD_CHARACTERS`, and then in an unnamed temporary file in `folder`.
    """

    def __init__(self, sink: Callable[[FinishedJob], None], window: int, folder: Path) -> None:
        self._sink = sink
        self.window = window
        """The caller may change it at any time."""
        self._next = 0
        self._early: dict[int, tuple[FinishedJob, int]] = {}
        """The jobs that wait in memory, each with its size in characters."""
        self._held_characters = 0
        self._file = _RolloutFile(folder)
        self.ended = False
        """Whether `end` was called, which stops passing on rollouts."""

    def has_room(self, index: int) -> bool:
        """Whether the job with this index may start, because it is not too far ahead of the slowest one."""
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
        while ready is not None and not self.ended:
            self._sink(ready)
            self._next += 1
            ready = self._take(self._next)

    def end(self) -> None:
        """Pass nothing more on."""
        self.ended = True

    def _store(self, index: int, rollouts: FinishedJob) -> None:
        size = sum(map(_text_length, rollouts)) if isinstance(rollouts, Sequence) else rollouts.size
        if self._held_characters + size > HELD_CHARACTERS:
            self._file.put(index, rollouts)
        else:
            self._held_characters += size
            self._early[index] = (rollouts, size)

    def _take(self, index: int) -> FinishedJob | None:
        if index not in self._early:
            return self._file.take(index)
        rollouts, size = self._early.pop(index)
        self._held_characters -= size
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


class _Piece(NamedTuple):
    """The position of a job's rollouts in the file; the jobs stay in memory, because the plan refers to them anyway."""

    offset: int
    size: int
    jobs: Sequence[Job] | None
    """The jobs of the rollouts, or None if the file has the outputs built from them instead."""


_FIELDS = [field.name for field in fields(Rollout) if field.name != "job"]


class _RolloutFile:
    """Rollouts in a temporary file, which is created when needed and truncated whenever it has become empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._pieces: dict[int, _Piece] = {}
        self._end = 0

    def put(self, index: int, rollouts: FinishedJob) -> None:
        jobs: Sequence[Job] | None = None
        content: Any = rollouts
        if isinstance(rollouts, Sequence):
            jobs = [rollout.job for rollout in rollouts]
            content = [[getattr(rollout, name) for name in _FIELDS] for rollout in rollouts]
        data = pickle.dumps(content, pickle.HIGHEST_PROTOCOL)
        try:
            if self._file is None:
                self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by `close`
            self._file.seek(self._end)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise self._write_error(error) from error
        self._pieces[index] = _Piece(self._end, len(data), jobs)
        self._end += len(data)

    def take(self, index: int) -> FinishedJob | None:
        """Remove and return a job's rollouts; None if they are not stored here."""
        piece = self._pieces.pop(index, None)
        if piece is None or self._file is None:
            return None
        try:
            self._file.seek(piece.offset)
            data = self._file.read(piece.size)
            if not self._pieces:
                self._file.truncate(0)
                self._end = 0
        except OSError as error:
            raise self._write_error(error) from error
        content: Any = pickle.loads(data)  # noqa: S301 - this process wrote the data, and the file has no name
        if piece.jobs is None:
            outputs: CompactOutputs = content
            return outputs
        return [
            Rollout(job, **dict(zip(_FIELDS, values, strict=True)))
            for job, values in zip(piece.jobs, content, strict=True)
        ]

    def _write_error(self, error: OSError) -> RunError:
        return RunError(
            f"cannot write finished rollouts to {self._folder}: {error.strerror}. Fix this and run the same command "
            "again: paid answers are in the journal"
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
