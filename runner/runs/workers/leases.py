"""The games that are still to lease, and the slot that each must go to."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.rollouts.job import Job

SUSPECT = 3
"""The number of worker deaths after which a game is played alone, to find out whether it kills workers."""

ALONE = 2
"""The number of deaths of workers that played only one game after which that game is blamed."""


@dataclass(eq=False)
class Leased:
    """A game, with the number of workers that died while they played it."""

    job: Job
    deaths: int = 0
    alone: int = 0
    """The number of these workers that played only this game."""

    def __lt__(self, other: Leased) -> bool:
        return self.job.index < other.job.index

    @property
    def is_suspect(self) -> bool:
        return self.deaths >= SUSPECT


class LeaseBook:
    """Leases games: first the games that were given back, then the others in the order of the plan.

    With `by_datapoint`, all games of a datapoint go to the slot that got the first of them, while its worker lives.
    """

    def __init__(self, jobs: Iterator[Job], has_room: Callable[[int], bool], slots: int, *, by_datapoint: bool) -> None:
        """`has_room` returns whether the game with this index may start now."""
        self._jobs, self._has_room = jobs, has_room
        self._by_datapoint = by_datapoint
        self._head: Job | None = next(jobs, None)
        self._back: list[Leased] = []
        self._suspects: list[Leased] = []
        self._slot_of: dict[str, int] = {}
        """The slot of each datapoint that was assigned to one."""
        self._queues: list[list[Leased]] = [[] for _ in range(slots)]
        """The games that wait for a busy slot, by slot."""

    @property
    def is_empty(self) -> bool:
        """Whether no game is left."""
        return self._head is None and not any((self._back, self._suspects, *self._queues))

    def next_for(self, slot: int) -> Leased | None:
        """Return the next game for a slot; None if there is none at the moment."""
        if not self._by_datapoint:
            return heapq.heappop(self._back) if self._back else self._take()
        while self._back:
            self._queue(heapq.heappop(self._back), slot)
        while not self._queues[slot]:
            leased = self._take()
            if leased is None:
                return None
            self._queue(leased, slot)
        return heapq.heappop(self._queues[slot])

    def _queue(self, leased: Leased, requesting: int) -> None:
        """Add a game to the queue of its datapoint's slot; a datapoint without a slot gets `requesting`."""
        slot = self._slot_of.setdefault(leased.job.datapoint.id, requesting)
        heapq.heappush(self._queues[slot], leased)

    def suspect_for(self, slot: int) -> Leased | None:
        """Return a game to play alone in a slot; None if there is none."""
        suspect = self._suspect(slot)
        if suspect is not None:
            self._suspects.remove(suspect)
            if self._by_datapoint:
                self._slot_of[suspect.job.datapoint.id] = slot
        return suspect

    def has_suspects(self, slot: int) -> bool:
        return self._suspect(slot) is not None

    def _suspect(self, slot: int) -> Leased | None:
        candidates = (leased for leased in self._suspects if self._slot_of.get(leased.job.datapoint.id, slot) == slot)
        return min(candidates, default=None)

    def _take(self) -> Leased | None:
        """Return the next game of the plan; None if it may not start yet."""
        job = self._head
        if job is None or not self._has_room(job.index):
            return None
        self._head = next(self._jobs, None)
        return Leased(job)

    def give_back(self, leased: Leased) -> None:
        """Take back a game that was not finished."""
        if leased.is_suspect:
            self._suspects.append(leased)
        else:
            heapq.heappush(self._back, leased)

    def free(self, slot: int) -> None:
        """Release the datapoints and queued games of a slot whose worker is gone."""
        self._slot_of = {datapoint: owner for datapoint, owner in self._slot_of.items() if owner != slot}
        for leased in self._queues[slot]:
            heapq.heappush(self._back, leased)
        self._queues[slot].clear()
