"""A background thread of the server that scores submissions, one at a time and accounts in turn."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from threading import Event, Thread

from runner.server.competitions.storage import list_waiting, score_submission
from runner.server.isolated_task import remove_leftovers
from runner.server.settings import Settings
from runner.server.store.database import Database

EACH_SECONDS = 5.0
"""Interval of the checks for submissions that another process, such as a command, has queued."""
LOG = logging.getLogger("nip_run.server")
RETRY_SECONDS = 60.0
"""Delay before scoring is tried again after the server's own failure, such as a full disk."""


class Scoring:
    """The queue of submissions to score. It is in the database, so a new server continues after one was killed."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._wake_up, self._stopping = Event(), Event()
        self._retry_at: dict[int, float] = {}
        """The time of the next try for each submission that could not be scored."""
        self._turns: dict[int, int] = {}
        """The last turn of each account that has waiting submissions."""

    def start(self) -> None:
        remove_leftovers(self._settings)
        Thread(target=self._work, name="score", daemon=True).start()
        self.wake()

    def wake(self) -> None:
        """Check for waiting submissions now."""
        self._wake_up.set()

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake_up.wait(EACH_SECONDS)
            self._wake_up.clear()
            if self._stopping.is_set():
                return
            try:
                self._score()
            except Exception:  # the submissions stay queued until the next check
                LOG.exception("submissions could not be scored")

    def _score(self) -> None:
        while not self._stopping.is_set():
            submission = self.next_submission(list_waiting(self._database))
            if submission is None:
                return
            try:
                score_submission(self._settings, self._database, submission)
            except Exception:  # the next is scored all the same
                LOG.exception("a submission could not be scored", extra={"submission": submission})
                self._retry_at[submission] = time.monotonic() + RETRY_SECONDS

    def next_submission(self, accounts: Mapping[int, int]) -> int | None:
        """Return the next submission: the oldest one of the account that has waited longest for a turn.

        `accounts` has the account of each waiting submission.
        """
        now = time.monotonic()
        self._retry_at = {submission: at for submission, at in self._retry_at.items() if submission in accounts}
        self._turns = {account: turn for account, turn in self._turns.items() if account in accounts.values()}
        ready = [submission for submission in accounts if self._retry_at.get(submission, 0.0) <= now]
        if not ready:
            return None
        chosen = min(ready, key=lambda submission: (self._turns.get(accounts[submission], 0), submission))
        self._turns[accounts[chosen]] = 1 + max(self._turns.values(), default=0)
        return chosen

    def close(self) -> None:
        self._stopping.set()
        self._wake_up.set()
