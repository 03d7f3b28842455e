"""The switch that stops a run: the engine, retries and workers check it before they send a request."""

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
        """Return a switch for a single run: it can be stopped alone, and is also stopped when this switch is."""
        branch = StopSwitch(self)
        self._branches.append(branch)
        if self.stopping:
            branch.stop()
        return branch

    @property
    def stopping(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Stop the run: `check` and `sleep` raise `Stopped` from now on, also in tasks that are sleeping."""
        self._stopped.set()
        for event in self._events:
            event.set()
        for branch in self._branches:
            branch.stop()

    def stop_all(self) -> None:
        """Stop this run and all runs of the parent switch; do nothing if this run has stopped already.

        A run with `until` stops once its result is clear. An error in the games that it then leaves unfinished does not
        stop the other runs.
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

    def set_on_stop(self, event: asyncio.Event) -> None:
        """Set this event when the run is stopped, so that tasks that wait for the event check this switch again."""
        self._events.append(event)
