"""Scores submissions, one after the other and accounts by turns, beside what a server answers."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from threading import Event, Thread

from runner.server.competitions.storage import score, waiting
from runner.server.isolated_task import clear
from runner.server.settings import Settings
from runner.server.store.database import Database

EACH_SECONDS = 5.0
"""Between two looks at whether a command beside the server has left some to score."""
LOG = logging.getLogger("nip_run.server")
AGAIN_SECONDS = 60.0
"""After which one is scored again that the server itself could not score, as where its disk was full."""


class Scoring:
    """Those that wait are in the database, so that a server that was killed goes on with them."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._awake, self._ending = Event(), Event()
        self._put_off: dict[int, float] = {}
        """Of those that could not be scored, when each is tried again."""
        self._turns: dict[int, int] = {}
        """Of each account that has some waiting, its last turn."""

    def start(self) -> None:
        clear(self._settings)
        Thread(target=self._work, name="score", daemon=True).start()
        self.wake()

    def wake(self) -> None:
        """Say that there may be some to score."""
        self._awake.set()

    def _work(self) -> None:
        while not self._ending.is_set():
            self._awake.wait(EACH_SECONDS)
            self._awake.clear()
            if self._ending.is_set():
                return
            try:
                self._score()
            except Exception:  # they stay as they are, until it is awake again
                LOG.exception("submissions could not be scored")

    def _score(self) -> None:
        while not self._ending.is_set() and (submission := self.following(waiting(self._database))) is not None:
            try:
                score(self._settings, self._database, submission)
            except Exception:  # the next is scored all the same
                LOG.exception("a submission could not be scored", extra={"submission": submission})
                self._put_off[submission] = time.monotonic() + AGAIN_SECONDS

    def following(self, there: Mapping[int, int]) -> int | None:
        """Of those that wait, the oldest one of the account whose turn is the longest ago."""
        now = time.monotonic()
        self._put_off = {one: until for one, until in self._put_off.items() if one in there}
        self._turns = {account: turn for account, turn in self._turns.items() if account in there.values()}
        ready = [one for one in there if self._put_off.get(one, 0.0) <= now]
        if not ready:
            return None
        chosen = min(ready, key=lambda one: (self._turns.get(there[one], 0), one))
        self._turns[there[chosen]] = 1 + max(self._turns.values(), default=0)
        return chosen

    def close(self) -> None:
        self._ending.set()
        self._awake.set()
