"""The interface of worker pools, which local processes and Ray actors implement.

A pool starts workers for the writer (the main process of a run with workers).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from runner.runs.workers.channel import ReceiveBatch

END_SECONDS = 5.0
"""The time that a worker has to end after its writer has closed the channel."""


class WorkerHandle(Protocol):
    """The writer's handle of a worker."""

    def send(self, message: Any) -> None: ...

    def kill(self, exit_reason: str) -> None:
        """Kill a worker that does not end by itself, and pass `exit_reason` to `on_exit`."""
        ...

    async def end(self, *, immediately: bool) -> None:
        """Close the channel and wait until the worker has ended; with `immediately`, kill it without waiting."""
        ...


class WorkerPool(Protocol):
    """Starts workers."""

    async def start(self, receive: ReceiveBatch, on_exit: Callable[[str], None]) -> WorkerHandle:
        """Start a worker whose messages are passed to `receive`.

        If the worker ends without a call of `end`, `on_exit` is called once with text that follows "a worker process",
        such as "was killed by SIGKILL".

        Raises:
            RunError: no worker can be started.
        """
        ...
