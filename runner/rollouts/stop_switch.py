"""The switch that stops a run: the engine, retries and workers check it before they send a request."""

from __future__ import annotations

from collections.abc import Callable

from runner.base.errors import Stopped


class StopSwitch:
    """A switch that is off until `stop` is called, and then stays on. Stopping a switch also stops its children."""

    def __init__(self, parent: StopSwitch | None = None) -> None:
        self._parent = parent
        self._children: list[StopSwitch] = []
        import asyncio

        self._stopped = asyncio.Event()
        self._callbacks: list[Callable[[], object]] = []

    def create_child(self) -> StopSwitch:
        """Return a switch for one of several runs. If the child is stopped, this switch stays off."""
        child = StopSwitch(self)
        self._children.append(child)
        if self.is_stopping:
            child.stop()
        return child

    @property
    def is_stopping(self) -> bool:
        return self._stopped.is_set()

    def stop(self) -> None:
        """Stop the run. From now on, `check` and `sleep_unless_stopped` raise `Stopped`, also in sleeping tasks."""
        self._stopped.set()
        for callback in self._callbacks:
            callback()
        for child in self._children:
            child.stop()

    def stop_all(self) -> None:
        """Stop this run and all other runs of the parent switch, unless this run has stopped already.

        For example, a run with `until` stops once its result is clear. An error in its unfinished games then does not
        stop the other runs.
        """
        if not self.is_stopping:
            (self if self._parent is None else self._parent).stop()

    def check(self) -> None:
        """Raise an error if no new request may be sent.

        Raises:
            Stopped: the run is stopping.
        """
        if self._stopped.is_set():
            raise Stopped

    async def sleep_unless_stopped(self, seconds: float) -> None:
        """Sleep, unless the run is stopped.

        Raises:
            Stopped: the run has stopped, or stops during the sleep.
        """
        import asyncio

        try:
            await asyncio.wait_for(self._stopped.wait(), seconds)
        except TimeoutError:
            return
        raise Stopped

    def call_on_stop(self, callback: Callable[[], object]) -> None:
        """Call this function when the run is stopped, for example to wake tasks that then check this switch again."""
        self._callbacks.append(callback)
