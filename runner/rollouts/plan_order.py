"""Rollouts in the order of the plan, whatever finished first."""

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
"""How much of what was said may wait in memory. A character takes up to four bytes, and what a message holds of an
answer stands there again."""


class Compact(Protocol):
    """What was made of a job's rollouts already, in their place: plain, and all that is needed of them."""

    @property
    def size(self) -> int:
        """About how many characters it takes."""
        ...


Finished = Sequence[Rollout] | Compact
"""A job's rollouts, or what was made of them."""


class InOrder:
    """Passes the rollouts of each job on in the order of the plan. At most `window` jobs that came too early wait.

    They wait in memory, as far as that is allowed, and beyond it in a file in `folder` that has no name.
    """

    def __init__(self, sink: Callable[[Finished], None], window: int, folder: Path) -> None:
        self._sink = sink
        self.window = window
        """May change while it takes rollouts."""
        self._next = 0
        self._early: dict[int, tuple[Finished, int]] = {}
        """With how much was said in them."""
        self._held = 0
        self._aside = _Aside(folder)
        self.ended = False
        """Whether nothing is passed on any more."""

    def has_room(self, index: int) -> bool:
        """Whether the job with this index may start: it is not too far ahead of the slowest."""
        return index < self._next + self.window

    def put(self, index: int, rollouts: Finished) -> None:
        """Take a job's rollouts, and pass on all whose turn has come.

        Raises:
            RunError: they cannot be kept.
        """
        if index != self._next:
            self._keep(index, rollouts)
            return
        found: Finished | None = rollouts
        while found is not None and not self.ended:
            self._sink(found)
            self._next += 1
            found = self._waiting(self._next)

    def end(self) -> None:
        """Pass nothing on from now: what was passed on last is the last."""
        self.ended = True

    def _keep(self, index: int, rollouts: Finished) -> None:
        said = sum(map(_said, rollouts)) if isinstance(rollouts, Sequence) else rollouts.size
        if self._held + said > HELD_CHARACTERS:
            self._aside.put(index, rollouts)
        else:
            self._held += said
            self._early[index] = (rollouts, said)

    def _waiting(self, index: int) -> Finished | None:
        if index not in self._early:
            return self._aside.take(index)
        rollouts, said = self._early.pop(index)
        self._held -= said
        return rollouts

    def close(self) -> None:
        """Let go of the file."""
        self._aside.close()


def _said(rollout: Rollout) -> int:
    return sum(
        len(text or "")
        for call in rollout.calls
        for text in (call.raw_message, call.reasoning, call.verdict_logprobs, call.error)
    )


class _Piece(NamedTuple):
    """Where a job's rollouts stand in the file; their jobs stay in memory, where the plan has them anyway."""

    offset: int
    size: int
    jobs: Sequence[Job] | None
    """None where what was made of them stands there."""


_FACTS = [field.name for field in fields(Rollout) if field.name != "job"]


class _Aside:
    """Rollouts on disk. The file is made when it is needed, and begun again whenever it has become empty."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._pieces: dict[int, _Piece] = {}
        self._end = 0

    def put(self, index: int, rollouts: Finished) -> None:
        jobs: Sequence[Job] | None = None
        kept: Any = rollouts
        if isinstance(rollouts, Sequence):
            jobs = [rollout.job for rollout in rollouts]
            kept = [[getattr(rollout, name) for name in _FACTS] for rollout in rollouts]
        data = pickle.dumps(kept, pickle.HIGHEST_PROTOCOL)
        try:
            if self._file is None:
                self._file = TemporaryFile(dir=self._folder)  # noqa: SIM115 - closed by `close`
            self._file.seek(self._end)
            self._file.write(data)
            self._file.flush()
        except OSError as error:
            raise self._cannot(error) from error
        self._pieces[index] = _Piece(self._end, len(data), jobs)
        self._end += len(data)

    def take(self, index: int) -> Finished | None:
        """A job's rollouts, which are no longer here; None where they never were."""
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
            raise self._cannot(error) from error
        found: Any = pickle.loads(data)  # noqa: S301 - our own, from a file that has no name
        if piece.jobs is None:
            made: Compact = found
            return made
        return [
            Rollout(job, **dict(zip(_FACTS, facts, strict=True))) for job, facts in zip(piece.jobs, found, strict=True)
        ]

    def _cannot(self, error: OSError) -> RunError:
        return RunError(
            f"cannot keep finished rollouts in {self._folder}: {error.strerror}; what was paid for is in the journal"
        )

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
