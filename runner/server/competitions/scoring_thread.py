"""The server's background thread that scores submissions one at a time. Accounts take turns.

`Publishing` starts the thread, and wakes it after publishing a run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from threading import Event, Thread

from runner.server.competitions.storage import list_waiting, score_submission
from runner.server.settings import Settings
from runner.server.store.database import Database

POLL_SECONDS = 5.0
"""Interval between two searches for submissions that another process, such as a command, has queued."""
LOG = logging.getLogger("nip_run.server")
RETRY_SECONDS = 60.0
"""Delay before the next attempt after a failure of the server itself, such as a full disk."""


class Scoring:
    """Scores queued submissions. The queue is in the database, so a restarted server continues with it."""

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings, self._database = settings, database
        self._wake_up, self._stopping = Event(), Event()
        self._retry_at: dict[int, float] = {}
        """The time of the next attempt for each submission that could not be scored."""
        self._turns: dict[int, int] = {}
        """The number of the last turn of each account with waiting submissions; a larger number is more recent."""

    def start(self) -> None:
        Thread(target=self._work, name="score", daemon=True).start()
        self.wake()

    def wake(self) -> None:
        """Check for waiting submissions now."""
        self._wake_up.set()

    def _work(self) -> None:
        while not self._stopping.is_set():
            self._wake_up.wait(POLL_SECONDS)
            self._wake_up.clear()
            if self._stopping.is_set():
                return
            try:
                self._score()
            except Exception:  # the submissions stay queued until the next check
                LOG.exception("submissions could not be scored")

    def _score(self) -> None:
        """Score submissions until none is ready."""
        while not self._stopping.is_set():
            submission = self.next_submission(list_waiting(self._database))
            if submission is None:
                return
            try:
                score_submission(self._settings, self._database, submission)
            except Exception:  # the thread continues with the next submission
                LOG.exception("a submission could not be scored", extra={"submission": submission})
                self._retry_at[submission] = time.monotonic() + RETRY_SECONDS

    def next_submission(self, accounts: Mapping[int, int]) -> int | None:
        """Return the oldest submission of the account whose last turn is longest ago, or None if all must wait.

        `accounts` maps each waiting submission to its account.
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
