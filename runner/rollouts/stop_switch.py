"""The switch that stops a run; everything that sends requests checks it."""

from __future__ import annotations

import asyncio

from runner.base.errors import NipRunError


class Stopped(NipRunError):
    """Raised after the run was asked to stop; no more requests are sent."""


class StopSwitch:
    """A switch that is off until `stop` is called, and then stays on."""

    def __init__(self, parent: StopSwitch | None = None) -> None:
        self._parent = parent
        self._branches: list[StopSwitch] = []
        self._stopped = asyncio.Event()
        self._events: list[asyncio.Event] = []

    def branch(self) -> StopSwitch:
        """Return a switch that stops a single run; it also stops when this one does."""
        branch = StopSwitch(self)
        self._branches.append(branch)
        if self.stopping:
            branch.stop()
        return branch

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Stop sending requests. Sleeping retries wake and raise Stopped."""
        self._stopped.set()
        for event in self._events:
            event.set()
        for branch in self._branches:
            branch.stop()

    def stop_all(self) -> None:
        """Stop this run and all runs of the parent switch; do nothing if this run has stopped already.

        A run that is already decided needs no more answers, so an error in its last games does not stop the other runs.
        """
        if not self.stopping:
            (self if self._parent is None else self._parent).stop()

    def check(self) -> None:
        """Raise an error if no new request may be sent.

        Raises:
            Stopped: the run is stopping.
        """
        if self._stopped.is_set():
            raise Stopped

    async def sleep(self, seconds: float) -> None:
        """Sleep, unless the run is stopped.

        Raises:
            Stopped: the run has stopped, or stops during the sleep.
        """
        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return
        raise Stopped

    def wakes(self, event: asyncio.Event) -> None:
        """Set this event too when the run is stopped, so that tasks that wait for it check again."""
        self._events.append(event)
