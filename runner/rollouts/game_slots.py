"""Slots for games, shared by runs that are played at the same time, such as the runs of a sweep.

A game takes one slot while it is played, so the runs together keep the limit `rollouts.concurrency`.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools


class Slots:
    """A limit of `size` concurrent games for all runs together. A free slot goes to the first run that waits."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._events: list[asyncio.Event] = []
        self._started_runs: set[int] = set()

    async def enter(self, order: int) -> None:
        """Wait for a slot for a game of the run with this position in the order of runs."""
        self.mark_started(order)
        if self._free > 0:
            self._free -= 1
            return
        slot = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._numbers), slot))
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
        self._free += 1
        self._notify()

    def mark_started(self, order: int) -> None:
        """Record that the run at this position has started to play games."""
        if order not in self._started_runs:
            self._started_runs.add(order)
            self._notify()

    def has_started(self, order: int) -> bool:
        """Return whether the run at this position in the order of runs has started to play games."""
        return order in self._started_runs

    @property
    def has_free(self) -> bool:
        """Whether a slot is free and no run waits for it."""
        return self._free > 0

    def set_on_change(self, event: asyncio.Event) -> None:
        """Set this event from now on whenever a run starts its games, or a slot is released and no run waits for it."""
        self._events.append(event)

    def _notify(self) -> None:
        for event in self._events:
            event.set()
