"""Which games are to be leased, to which place, and what became of those that were."""

from __future__ import annotations

import heapq
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.rollouts.job import Job

SUSPECT = 3
"""A game whose worker has died so often is played alone in a worker, so that it is known whether it was the game."""

ALONE = 2
"""The worker that played it alone has died so often: it was."""


@dataclass(eq=False)
class Leased:
    """A game, and how many workers have died while they played it."""

    job: Job
    deaths: int = 0
    alone: int = 0
    """How many of them played nothing else."""

    def __lt__(self, other: Leased) -> bool:
        return self.job.index < other.job.index

    @property
    def is_suspect(self) -> bool:
        return self.deaths >= SUSPECT


class LeaseBook:
    """Gives games in the order of the plan, those that came back first.

    With `by_datapoint`, all games of a datapoint go to one place.
    """

    def __init__(
        self, jobs: Iterator[Job], has_room: Callable[[int], bool], places: int, *, by_datapoint: bool
    ) -> None:
        """`has_room` says whether the game with this index may start now."""
        self._jobs, self._has_room, self._places = jobs, has_room, places
        self._by_datapoint = by_datapoint
        self._head: Job | None = next(jobs, None)
        self._queues: list[deque[Leased]] = [deque() for _ in range(places)]
        self._back: list[list[Leased]] = [[] for _ in range(places)]
        self._suspects: list[list[Leased]] = [[] for _ in range(places)]

    @property
    def is_empty(self) -> bool:
        """Whether no game is left to be given."""
        return self._head is None and not any((*self._queues, *self._back, *self._suspects))

    def next_for(self, place: int) -> Leased | None:
        """The next game for a place; None where there is none now."""
        back = self._back[place if self._by_datapoint else 0]
        if back:
            return heapq.heappop(back)
        if not self._by_datapoint:
            return self._taken()
        while not self._queues[place]:
            leased = self._taken()
            if leased is None:
                return None
            self._queues[self._place_of(leased)].append(leased)
        return self._queues[place].popleft()

    def suspect_for(self, place: int) -> Leased | None:
        """A game to be played alone at a place; None where there is none."""
        suspects = self._suspects[place if self._by_datapoint else 0]
        return heapq.heappop(suspects) if suspects else None

    def has_suspects(self, place: int) -> bool:
        return bool(self._suspects[place if self._by_datapoint else 0])

    def _taken(self) -> Leased | None:
        """The next game of the plan, where it may start."""
        job = self._head
        if job is None or not self._has_room(job.index):
            return None
        self._head = next(self._jobs, None)
        return Leased(job)

    def _place_of(self, leased: Leased) -> int:
        """The one place for all games of a datapoint; the first, where any will do."""
        return zlib.crc32(leased.job.datapoint.id.encode()) % self._places if self._by_datapoint else 0

    def give_back(self, leased: Leased) -> None:
        """A game that was not finished, to be given again."""
        waiting = self._suspects if leased.is_suspect else self._back
        heapq.heappush(waiting[self._place_of(leased)], leased)
