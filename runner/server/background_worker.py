"""A background thread of the server that processes items, such as uploads to check, one at a time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from threading import Event, Thread
from typing import Generic, TypeVar

LOG = logging.getLogger("nip_run.server")
Item = TypeVar("Item", int, str)
_POLL_SECONDS = 5.0
"""Maximum interval between two searches for items, because other processes, such as commands, also add items."""


class BackgroundWorker(Generic[Item]):
    """Processes items that wait in the database. Accounts take turns, to prevent an account from blocking the others.

    Args:
        task: name of the work in log messages.
        list_waiting: returns a mapping from the id of each waiting item to the id of its account, oldest item first.
        process: called with the ids of an item and its account. Afterwards, the item no longer waits.
        retry_seconds: delay before the next attempt after a failure of the server itself, such as a full disk.
    """

    def __init__(
        self, task: str, list_waiting: Callable[[], Mapping[Item, int]], process: Callable[[Item, int], None], *,
        retry_seconds: float,
    ) -> None:  # fmt: skip
        self._task, self._retry_seconds = task, retry_seconds
        self._list_waiting: Callable[[], Mapping[Item, int]] = list_waiting
        self._process: Callable[[Item, int], None] = process
        self._wake_up, self._stopping = Event(), Event()
        self._retry_at: dict[Item, float] = {}
        """The time of the next attempt for each item whose processing failed."""
        self._last_turns: dict[int, int] = {}
        """The position of each account's last turn among all turns, from 1."""

    def start(self) -> None:
        Thread(target=self._work, name=self._task, daemon=True).start()

    def wake(self) -> None:
        """Search for waiting items now."""
        self._wake_up.set()

    def _work(self) -> None:
        while not self._stopping.is_set():
            try:
                self._process_waiting()
            except Exception:  # the items stay in the database
                LOG.exception("the server could not list the items that wait for the %s", self._task)
            self._wake_up.wait(min(_POLL_SECONDS, self._retry_seconds))
            self._wake_up.clear()

    def _process_waiting(self) -> None:
        """Process items until none is ready."""
        while not self._stopping.is_set():
            waiting = self._list_waiting()
            item = self.choose_next_item(waiting)
            if item is None:
                return
            try:
                self._process(item, waiting[item])
            except Exception:  # the thread continues with the next item
                LOG.exception(
                    "the %s failed; next attempt in %g s", self._task, self._retry_seconds, extra={"id": item}
                )
                self._retry_at[item] = time.monotonic() + self._retry_seconds

    def choose_next_item(self, waiting: Mapping[Item, int]) -> Item | None:
        """Give an account the next turn, and return its oldest ready item; None if no account has a ready item."""
        now = time.monotonic()
        self._retry_at = {item: retry_at for item, retry_at in self._retry_at.items() if item in waiting}
        ready = [item for item in waiting if self._retry_at.get(item, 0.0) <= now]
        if not ready:
            return None
        # The account whose last turn is longest ago has the next turn.
        chosen = min(ready, key=lambda item: self._last_turns.get(waiting[item], 0))
        self._last_turns[waiting[chosen]] = 1 + max(self._last_turns.values(), default=0)
        return chosen

    def close(self) -> None:
        """Stop without waiting for the current item."""
        self._stopping.set()
        self._wake_up.set()
