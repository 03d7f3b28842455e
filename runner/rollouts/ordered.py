"""Rollouts in the order of the plan, whatever finished first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from runner.rollouts.rollout import Rollout


class InOrder:
    """Passes the rollouts of each job on in the order of the plan. Holds at most `window` jobs that came too early."""

    def __init__(self, sink: Callable[[Sequence[Rollout]], None], window: int) -> None:
        self._sink = sink
        self._window = window
        self._next = 0
        self._early: dict[int, Sequence[Rollout]] = {}

    def has_room(self, index: int) -> bool:
        """Whether the job with this index may start: it is not too far ahead of the slowest."""
        return index < self._next + self._window

    def put(self, index: int, rollouts: Sequence[Rollout]) -> None:
        self._early[index] = rollouts
        while self._next in self._early:
            self._sink(self._early.pop(self._next))
            self._next += 1
