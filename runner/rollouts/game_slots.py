"""Slots for games, shared by runs that are played at the same time, such as the runs of a sweep.

A game takes one slot while it is played, so all runs together keep the limit `rollouts.concurrency`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools


class GameSlots:
    """A limit of `size` concurrent games for all runs together. A released slot goes to the first waiting run."""

    def __init__(self, size: int) -> None:
        self._free_count = size
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        """The games that wait, as a heap: the position of the run, the number of the request, and its result."""
        self._request_numbers = itertools.count()
        self._events: list[asyncio.Event] = []
        self._started_runs: set[int] = set()
        """The positions of the runs that have started to play games."""

    async def enter(self, position: int) -> None:
        """Wait for a slot for a game of the run with this position among the runs."""
        self.mark_run_started(position)
        if self._free_count > 0:
            self._free_count -= 1
            return
        slot = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (position, next(self._request_numbers), slot))
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.leave()  # the slot was assigned just before the cancellation
            raise

    def leave(self) -> None:
        """Release a slot."""
        while self._waiting:
            _, _, slot = heapq.heappop(self._waiting)
            if not slot.done():
                slot.set_result(None)
                return
        self._free_count += 1
        self._notify()

    def mark_run_started(self, position: int) -> None:
        """Record that the run with this position among the runs has started to play games."""
        if position not in self._started_runs:
            self._started_runs.add(position)
            self._notify()

    def has_run_started(self, position: int) -> bool:
        """Return whether the run with this position among the runs has started to play games."""
        return position in self._started_runs

    @property
    def has_free(self) -> bool:
        """Whether a slot is free and no run waits for it."""
        return self._free_count > 0

    def notify_on_change(self, event: asyncio.Event) -> None:
        """Set this event whenever a run starts its games, or a slot is released and no run waits for it."""
        self._events.append(event)

    def _notify(self) -> None:
        for event in self._events:
            event.set()
