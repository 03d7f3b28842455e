"""The one switch that stops a run, made before everything that asks models, and heard by all of it."""

from __future__ import annotations

import asyncio

from runner.base.errors import NipRunError


class Stopped(NipRunError):
    """The run was asked to stop; no request goes out any more."""


class StopSwitch:
    """Off until `stop` is called, once and for all."""

    def __init__(self, parent: StopSwitch | None = None) -> None:
        self._parent = parent
        self._branches: list[StopSwitch] = []
        self._asked = asyncio.Event()
        self._woken: list[asyncio.Event] = []

    def branch(self) -> StopSwitch:
        """A switch that stops one run alone, and stops with this one."""
        branch = StopSwitch(self)
        self._branches.append(branch)
        if self.stopping:
            branch.stop()
        return branch

    @property
    def stopping(self) -> bool:
        return self._asked.is_set()

    def stop(self) -> None:
        """Stop issuing requests. Sleeping retries wake and raise Stopped."""
        self._asked.set()
        for event in self._woken:
            event.set()
        for branch in self._branches:
            branch.stop()

    def stop_all(self) -> None:
        """Stop what this one is a branch of, too; nothing where this one has stopped already.

        A run that is decided needs no more answers: what its last games meet ends no other run, which may meet it, too.
        """
        if not self.stopping:
            (self if self._parent is None else self._parent).stop()

    def check(self) -> None:
        """Raise where no new request may go out.

        Raises:
            Stopped: the run is stopping.
        """
        if self._asked.is_set():
            raise Stopped

    async def sleep(self, seconds: float) -> None:
        """Sleep, unless the run is stopped.

        Raises:
            Stopped: it is, or was in the meantime.
        """
        try:
            await asyncio.wait_for(self._asked.wait(), seconds)
        except TimeoutError:
            return
        raise Stopped

    def wakes(self, event: asyncio.Event) -> None:
        """Set this event, too, when the run is stopped, so that those who wait for it check again."""
        self._woken.append(event)
