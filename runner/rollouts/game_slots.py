"""Places for games, shared by runs that are played at the same time."""

from __future__ import annotations

import asyncio
import heapq
import itertools


class Slots:
    """At most `size` games at once, of all runs together; a free place goes to the first run that waits for one."""

    def __init__(self, size: int) -> None:
        self._free = size
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []
        self._numbers = itertools.count()
        self._woken: list[asyncio.Event] = []
        self._come: set[int] = set()

    async def enter(self, order: int) -> None:
        """Wait for a place for a game of the run that has this place in the order of runs."""
        self.come(order)
        if self._free > 0:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (order, next(self._numbers), place))
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.leave()  # the place was given in the same moment
            raise

    def leave(self) -> None:
        """Give a place back."""
        while self._waiting:
            _, _, place = heapq.heappop(self._waiting)
            if not place.done():
                place.set_result(None)
                return
        self._free += 1
        self._wake()

    def come(self, order: int) -> None:
        """A run has come so far that it takes all places that it can."""
        if order not in self._come:
            self._come.add(order)
            self._wake()

    def has_come(self, order: int) -> bool:
        return order in self._come

    @property
    def has_free(self) -> bool:
        """Whether there is a place that no run waits for."""
        return self._free > 0

    def wakes(self, event: asyncio.Event) -> None:
        """Set this event whenever a place is free that nobody waited for, and whenever a run has come."""
        self._woken.append(event)

    def _wake(self) -> None:
        for event in self._woken:
            event.set()
