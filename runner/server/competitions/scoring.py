"""Scores submissions, one after the other, beside what a server answers."""

from __future__ import annotations

import logging
from threading import Event, Thread

from runner.server.apart import clear
from runner.server.competitions.kept import score_waiting
from runner.server.settings import Settings
from runner.server.store.database import Database

EACH_SECONDS = 5.0
"""Between two looks at whether a command beside the server has left some to score."""
LOG = logging.getLogger("nip_run.server")


class Scoring:
    """Those that wait are in the database, so that a server that was killed goes on with them."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._awake, self._ending = Event(), Event()

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
                score_waiting(self._settings, self._database)
            except Exception:  # they stay as they are, until it is awake again
                LOG.exception("submissions could not be scored")

    def close(self) -> None:
        self._ending.set()
        self._awake.set()
