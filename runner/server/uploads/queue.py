"""The queue of uploads that wait for their check. It serves accounts in turn, to prevent one from blocking others."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Condition


@dataclass(frozen=True)
class QueuedUpload:
    """An upload that waits for its check."""

    upload: str
    account_id: int
    tries: int = 0


class UploadQueue:
    """A queue that serves accounts in turn, and each account's uploads in order. It has each upload at most once."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._turns: deque[int] = deque()
        self._waiting: dict[int, deque[QueuedUpload]] = {}
        self._ids: set[str] = set()
        self._closed = False

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
        """Wait for the next upload and return it; None if the queue is closed. The caller calls `done` or `again`."""
        with self._condition:
            while not (self._turns or self._closed):
                self._condition.wait()
            if self._closed:
                return None
            account = self._turns.popleft()
            item = self._waiting[account].popleft()
            if self._waiting[account]:
                self._turns.append(account)
            else:
                del self._waiting[account]
            return item

    def done(self, item: QueuedUpload) -> None:
        """Forget an upload, so that it can be added again."""
        with self._condition:
            self._ids.discard(item.upload)

    def again(self, item: QueuedUpload) -> None:
        """Queue an upload from `take` again, behind all others of its account."""
        with self._condition:
            self._append(item)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
