"""Which games are to be leased, to which place, and what became of those that were."""

from __future__ import annotations

import heapq
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

    With `by_datapoint`, all games of a datapoint go to one place: the one that had the first of them, for as long as it
    has a worker.
    """

    def __init__(
        self, jobs: Iterator[Job], has_room: Callable[[int], bool], places: int, *, by_datapoint: bool
    ) -> None:
        """`has_room` says whether the game with this index may start now."""
        self._jobs, self._has_room = jobs, has_room
        self._by_datapoint = by_datapoint
        self._head: Job | None = next(jobs, None)
        self._back: list[Leased] = []
        self._suspects: list[Leased] = []
        self._place_of: dict[str, int] = {}
        """Of each datapoint that has one."""
        self._queues: list[list[Leased]] = [[] for _ in range(places)]
        """The games that wait for their place, which is busy."""

    @property
    def is_empty(self) -> bool:
        """Whether no game is left to be given."""
        return self._head is None and not any((self._back, self._suspects, *self._queues))

    def next_for(self, place: int) -> Leased | None:
        """The next game for a place; None where there is none now."""
        if not self._by_datapoint:
            return heapq.heappop(self._back) if self._back else self._taken()
        while self._back:
            self._queue(heapq.heappop(self._back), place)
        while not self._queues[place]:
            leased = self._taken()
            if leased is None:
                return None
            self._queue(leased, place)
        return heapq.heappop(self._queues[place])

    def _queue(self, leased: Leased, asking: int) -> None:
        """Have a game wait for the place of its datapoint, which is the asking one where there is none."""
        place = self._place_of.setdefault(leased.job.datapoint.id, asking)
        heapq.heappush(self._queues[place], leased)

    def suspect_for(self, place: int) -> Leased | None:
        """A game to be played alone at a place; None where there is none."""
        found = self._suspect(place)
        if found is not None:
            self._suspects.remove(found)
            if self._by_datapoint:
                self._place_of[found.job.datapoint.id] = place
        return found

    def has_suspects(self, place: int) -> bool:
        return self._suspect(place) is not None

    def _suspect(self, place: int) -> Leased | None:
        mine = (one for one in self._suspects if self._place_of.get(one.job.datapoint.id, place) == place)
        return min(mine, default=None)

    def _taken(self) -> Leased | None:
        """The next game of the plan, where it may start."""
        job = self._head
        if job is None or not self._has_room(job.index):
            return None
        self._head = next(self._jobs, None)
        return Leased(job)

    def give_back(self, leased: Leased) -> None:
        """A game that was not finished, to be given again."""
        if leased.is_suspect:
            self._suspects.append(leased)
        else:
            heapq.heappush(self._back, leased)

    def leave(self, place: int) -> None:
        """The worker of a place is gone, and all its games have been given back: others may have its datapoints."""
        self._place_of = {datapoint: its for datapoint, its in self._place_of.items() if its != place}
        for leased in self._queues[place]:
            heapq.heappush(self._back, leased)
        self._queues[place].clear()
