"""The queue of uploads that wait for their check by a thread of `Publishing`.

Accounts take turns, to prevent an account from blocking the others.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Condition


@dataclass(frozen=True)
class QueuedUpload:
    """An upload that waits for its check."""

    upload: str
    """The upload's id."""
    account_id: int
    tries: int = 0
    """Number of attempts that failed because of the server."""


class UploadQueue:
    """A queue in which accounts take turns. It has each upload once. Uploads of one account are first in, first out."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._turns: deque[int] = deque()
        """Accounts with waiting uploads; the first one has the next turn."""
        self._waiting: dict[int, deque[QueuedUpload]] = {}
        self._ids: set[str] = set()
        """Uploads that are waiting or being checked."""
        self._is_closed = False

    def put(self, item: QueuedUpload) -> None:
        """Add an upload, unless it is waiting or being checked."""
        with self._condition:
            if item.upload not in self._ids:
                self._ids.add(item.upload)
                self._append(item)

    def _append(self, item: QueuedUpload) -> None:
        waiting = self._waiting.setdefault(item.account_id, deque())
        if not waiting:
            self._turns.append(item.account_id)
        waiting.append(item)
        self._condition.notify()

    def take(self) -> QueuedUpload | None:
        """Wait for the next upload and return it; None if the queue is closed.

        After the check, the caller calls `remove` or `requeue`.
        """
        with self._condition:
            while not (self._turns or self._is_closed):
                self._condition.wait()
            if self._is_closed:
                return None
            account = self._turns.popleft()
            item = self._waiting[account].popleft()
            if self._waiting[account]:
                self._turns.append(account)
            else:
                del self._waiting[account]
            return item

    def remove(self, item: QueuedUpload) -> None:
        """Remove an upload after its check, so that it can be added again."""
        with self._condition:
            self._ids.discard(item.upload)

    def requeue(self, item: QueuedUpload) -> None:
        """Queue an upload from `take` again, behind all other uploads of its account."""
        with self._condition:
            self._append(item)

    def close(self) -> None:
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()
