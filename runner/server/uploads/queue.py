"""Uploads that wait for their check: by turns among who sent them, so that nobody keeps the others waiting."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from threading import Condition


@dataclass(frozen=True)
class QueuedUpload:
    """One upload that is to be checked."""

    upload: str
    account_id: int
    tries: int = 0


class Queue:
    """First come, first served within an account; accounts by turns. Each upload is in it once, until it is done."""

    def __init__(self) -> None:
        self._condition = Condition()
        self._turns: deque[int] = deque()
        self._of: dict[int, deque[QueuedUpload]] = {}
        self._known: set[str] = set()
        self._closed = False

    def put(self, one: QueuedUpload) -> None:
        """Have an upload wait, unless it does, or is being checked."""
        with self._condition:
            if one.upload not in self._known:
                self._known.add(one.upload)
                self._append(one)

    def _append(self, one: QueuedUpload) -> None:
        waiting = self._of.setdefault(one.account_id, deque())
        if not waiting:
            self._turns.append(one.account_id)
        waiting.append(one)
        self._condition.notify()

    def take(self) -> QueuedUpload | None:
        """The next one, which is waited for; None once the queue is closed. Whoever takes one says when it is done."""
        with self._condition:
            while not (self._turns or self._closed):
                self._condition.wait()
            if self._closed:
                return None
            account = self._turns.popleft()
            one = self._of[account].popleft()
            if self._of[account]:
                self._turns.append(account)
            else:
                del self._of[account]
            return one

    def done(self, one: QueuedUpload) -> None:
        """It need not be known any more."""
        with self._condition:
            self._known.discard(one.upload)

    def again(self, one: QueuedUpload) -> None:
        """Have one that was taken wait behind all others of its account."""
        with self._condition:
            self._append(one)

    def close(self) -> None:
        with self._condition:
            self._closed = True
            self._condition.notify_all()
