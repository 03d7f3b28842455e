"""The games that are not leased, the worker slot that each of them must go to, and the key of each game.

The writer (the main process) leases each game to the worker in one slot, with the game's records in the journal. If the
worker dies, its games are returned here. The key tells which records belong to a game.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.rollouts.job import Job
from runner.rollouts.plan import Plan

SUSPECT_DEATHS = 3
"""After this many deaths of workers that played a game, the next worker plays the game alone, to test it."""

MAX_DEATHS_ALONE = 2
"""After this many deaths of workers that played a game alone, the run ends with an error that names the game."""


Game = tuple[object, ...]
"""The key of a game or tree or, if games share calls, of all games of a datapoint."""


def game_of_sample(plan: Plan, datapoint: str, repeat: int) -> Game:
    """Return the key of the game that a sample (an answer of the run) belongs to."""
    if plan.shares_between_games:
        return (datapoint,)
    variants = len(plan.variants)
    branches = 1 if plan.shape is None else plan.shape.branches
    return datapoint, repeat // variants // branches, repeat % variants


def game_of_job(plan: Plan, job: Job) -> Game:
    """Return the key of the game of a job."""
    return game_of_sample(plan, job.datapoint.id, job.number)


@dataclass(eq=False)
class LeasedGame:
    """A game that was leased at least once."""

    job: Job
    deaths: int = 0
    """The number of workers that died while they played this game."""
    deaths_alone: int = 0
    """The number of workers that died while they played only this game."""

    def __lt__(self, other: LeasedGame) -> bool:
        return self.job.index < other.job.index

    @property
    def is_suspect(self) -> bool:
        """Whether the game may be the cause of the deaths, so that a worker must play it alone."""
        return self.deaths >= SUSPECT_DEATHS


class LeaseBook:
    """Chooses the next game for each slot: first games that were returned, then new games in the order of the plan.

    With `by_datapoint`, all games of a datapoint go to the slot of its first game, until the worker there dies.
    """

    def __init__(self, jobs: Iterator[Job], has_room: Callable[[int], bool], slots: int, *, by_datapoint: bool) -> None:
        """Prepare to lease `jobs`. `has_room` returns whether the game with this index may start now."""
        self._jobs, self._has_room = jobs, has_room
        self._by_datapoint = by_datapoint
        self._head: Job | None = next(jobs, None)
        """The next new game."""
        self._returned: list[LeasedGame] = []
        """The games that were returned, as a heap."""
        self._suspects: list[LeasedGame] = []
        self._slot_of: dict[str, int] = {}
        """The slot of each datapoint, if the datapoint has one."""
        self._queues: list[list[LeasedGame]] = [[] for _ in range(slots)]
        """The games that wait for each slot, as heaps."""

    @property
    def is_empty(self) -> bool:
        """Whether no game is left to lease."""
        return self._head is None and not any((self._returned, self._suspects, *self._queues))

    def next_for(self, slot: int) -> LeasedGame | None:
        """Remove and return the next game for a slot; None if there is none at the moment."""
        if not self._by_datapoint:
            return heapq.heappop(self._returned) if self._returned else self._take()
        while self._returned:
            self._queue(heapq.heappop(self._returned), slot)
        while not self._queues[slot]:
            leased = self._take()
            if leased is None:
                return None
            self._queue(leased, slot)
        return heapq.heappop(self._queues[slot])

    def _queue(self, leased: LeasedGame, requesting: int) -> None:
        """Add a game to the queue of its datapoint's slot, which is `requesting` if the datapoint has none yet."""
        slot = self._slot_of.setdefault(leased.job.datapoint.id, requesting)
        heapq.heappush(self._queues[slot], leased)

    def suspect_for(self, slot: int) -> LeasedGame | None:
        """Remove and return a game that the slot must play alone; None if there is none."""
        suspect = self._suspect(slot)
        if suspect is not None:
            self._suspects.remove(suspect)
            if self._by_datapoint:
                self._slot_of[suspect.job.datapoint.id] = slot
        return suspect

    def has_suspects(self, slot: int) -> bool:
        """Return whether there is a game that the slot must play alone."""
        return self._suspect(slot) is not None

    def _suspect(self, slot: int) -> LeasedGame | None:
        candidates = (leased for leased in self._suspects if self._slot_of.get(leased.job.datapoint.id, slot) == slot)
        return min(candidates, default=None)

    def _take(self) -> LeasedGame | None:
        """Remove and return the next new game; None if there is none or it may not start yet."""
        job = self._head
        if job is None or not self._has_room(job.index):
            return None
        self._head = next(self._jobs, None)
        return LeasedGame(job)

    def return_game(self, leased: LeasedGame) -> None:
        """Take back a game that was not finished."""
        if leased.is_suspect:
            self._suspects.append(leased)
        else:
            heapq.heappush(self._returned, leased)

    def release_slot(self, slot: int) -> None:
        """Release the datapoints and queued games of a slot whose worker is gone."""
        self._slot_of = {datapoint: owner for datapoint, owner in self._slot_of.items() if owner != slot}
        for leased in self._queues[slot]:
            heapq.heappush(self._returned, leased)
        self._queues[slot].clear()
