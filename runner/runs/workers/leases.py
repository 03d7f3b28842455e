"""Chooses the next game for each worker, and computes the keys that group the journal's records by game.

The writer (the main process) leases each game to one worker, with the game's records in the journal. A slot is the
place of one worker: if the worker dies, its games are returned here, and a new worker takes over the slot. A suspect is
a game that several workers played when they died. A worker plays it alone, to find out whether the game kills workers.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from runner.rollouts.job import Job
from runner.rollouts.plan import Plan

SUSPECT_DEATHS = 3
"""A game is a suspect after this many workers died while they played it."""

MAX_DEATHS_ALONE = 2
"""After this many deaths of workers that played only one game, the run ends with an error that names the game."""


GameKey = tuple[object, ...]
"""The key of a game or tree. If games share calls, all games of a datapoint have the same key."""


def game_key_of_sample(plan: Plan, datapoint: str, repeat: int) -> GameKey:
    """Return the key of the game that a sample (an answer of the run) belongs to."""
    if plan.games_share_calls:
        return (datapoint,)
    variants = len(plan.variants)
    branches = 1 if plan.tree_shape is None else plan.tree_shape.branches
    return datapoint, repeat // variants // branches, repeat % variants


def game_key_of_job(plan: Plan, job: Job) -> GameKey:
    """Return the key of the game of a job."""
    return game_key_of_sample(plan, job.datapoint.id, job.number)


@dataclass(eq=False)
class LeasedGame:
    """A game that was leased at least once."""

    job: Job
    deaths: int = 0
    """The number of workers that died while they played this game."""
    deaths_alone: int = 0
    """The number of workers that died while they played this game and no other."""

    def __lt__(self, other: LeasedGame) -> bool:
        return self.job.index < other.job.index

    @property
    def is_suspect(self) -> bool:
        """Whether the game may have killed the workers that played it."""
        return self.deaths >= SUSPECT_DEATHS


class LeaseBook:
    """Chooses the next game for each slot: first games that were returned, then new games in the order of the plan.

    With `by_datapoint`, all games of a datapoint go to the slot of the datapoint's first game, until the worker in this
    slot dies.
    """

    def __init__(
        self, jobs: Iterator[Job], may_start: Callable[[int], bool], slot_count: int, *, by_datapoint: bool
    ) -> None:
        """Prepare to lease `jobs`. `may_start` takes the index of a game and returns whether it may start now."""
        self._jobs, self._may_start = jobs, may_start
        self._by_datapoint = by_datapoint
        self._next_job: Job | None = next(jobs, None)
        """The first game of the plan that was not leased yet; None if there is none."""
        self._returned: list[LeasedGame] = []
        """The games that were returned, as a heap."""
        self._suspects: list[LeasedGame] = []
        """The returned games that a worker must play alone."""
        self._slot_by_datapoint: dict[str, int] = {}
        """The slot of each datapoint, if the datapoint has one."""
        self._queues: list[list[LeasedGame]] = [[] for _ in range(slot_count)]
        """The games that wait for each slot, as heaps."""

    @property
    def is_empty(self) -> bool:
        """Whether no game is left to lease."""
        return self._next_job is None and not any((self._returned, self._suspects, *self._queues))

    def next_game_for(self, slot: int) -> LeasedGame | None:
        """Remove and return the next game for a slot; None if no game may start in it at the moment."""
        if not self._by_datapoint:
            return heapq.heappop(self._returned) if self._returned else self._take_new_game()
        while self._returned:
            self._add_to_queue(heapq.heappop(self._returned), slot)
        while not self._queues[slot]:
            game = self._take_new_game()
            if game is None:
                return None
            self._add_to_queue(game, slot)
        return heapq.heappop(self._queues[slot])

    def _add_to_queue(self, game: LeasedGame, requesting_slot: int) -> None:
        """Add a game to the queue of its datapoint's slot. A datapoint without a slot gets `requesting_slot`."""
        slot = self._slot_by_datapoint.setdefault(game.job.datapoint.id, requesting_slot)
        heapq.heappush(self._queues[slot], game)

    def next_suspect_for(self, slot: int) -> LeasedGame | None:
        """Remove and return a suspect for a slot; None if there is none."""
        suspect = self._next_suspect(slot)
        if suspect is not None:
            self._suspects.remove(suspect)
            if self._by_datapoint:
                self._slot_by_datapoint[suspect.job.datapoint.id] = slot
        return suspect

    def has_suspect_for(self, slot: int) -> bool:
        """Return whether there is a suspect for a slot."""
        return self._next_suspect(slot) is not None

    def _next_suspect(self, slot: int) -> LeasedGame | None:
        slot_by_datapoint = self._slot_by_datapoint
        candidates = (game for game in self._suspects if slot_by_datapoint.get(game.job.datapoint.id, slot) == slot)
        return min(candidates, default=None)

    def _take_new_game(self) -> LeasedGame | None:
        """Remove and return the next new game; None if no new game is left, or the next one may not start yet."""
        job = self._next_job
        if job is None or not self._may_start(job.index):
            return None
        self._next_job = next(self._jobs, None)
        return LeasedGame(job)

    def return_game(self, game: LeasedGame) -> None:
        """Take back a game that was not finished."""
        if game.is_suspect:
            self._suspects.append(game)
        else:
            heapq.heappush(self._returned, game)

    def release_slot(self, slot: int) -> None:
        """Release the datapoints and queued games of a slot whose worker is gone."""
        self._slot_by_datapoint = {id_: owner for id_, owner in self._slot_by_datapoint.items() if owner != slot}
        for game in self._queues[slot]:
            heapq.heappush(self._returned, game)
        self._queues[slot].clear()
