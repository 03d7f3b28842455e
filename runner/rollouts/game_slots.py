"""Slots for games, shared by runs that are played at the same time."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class Slots:
    """A limit of `size` concurrent games for all runs together; a free slot goes to the first waiting run in order."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._events: list[asyncio.Event] = []
        self._playing: set[int] = set()

    async def enter(self, order: int) -> None:
        """Wait for a slot for a game of the run with this position in the order of runs."""
        self.come(order)
        if self._free > 0:
            self._free -= 1
            return
        slot = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._numbers), slot))
        try:
            await slot
        except asyncio.CancelledError:
            if slot.done() and not slot.cancelled():
                self.leave()  # the slot was assigned in the same moment
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

    def come(self, order: int) -> None:
        """Record that a run has started to play games, and so takes every slot that it can use."""
        if order not in self._playing:
            self._playing.add(order)
            self._notify()

    def has_come(self, order: int) -> bool:
        return order in self._playing

    @property
    def has_free(self) -> bool:
        """Whether there is a slot that no run waits for."""
        return self._free > 0

    def wakes(self, event: asyncio.Event) -> None:
        """Set this event whenever a slot becomes free that no run waits for, and whenever a run starts its games."""
        self._events.append(event)

    def _notify(self) -> None:
        for event in self._events:
            event.set()
