"""Starts the provider that fine-tunes in a process of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.servers.batch_client import Provider
from tests.support.subprocess_server import server_process


class FineTuner(Provider):
    """A running provider that fine-tunes."""

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs as they were created, each with the `body` it was asked for by and its file's `sha256`."""
        found: list[dict[str, Any]] = self._get("/jobs")
        return found

    def files(self) -> list[dict[str, Any]]:
        """What was uploaded."""
        found: list[dict[str, Any]] = self._get("/files")
        return found

    def log(self) -> list[dict[str, Any]]:
        """All requests but chat: method, target, headers."""
        found: list[dict[str, Any]] = self._get("/log")
        return found

    def set_job(self, name: str, **fields: Any) -> None:
        """Take a job into one's own hands: its `status`, `error` or `model`."""
        self._get("/set", json.dumps({"id": name, **fields}).encode())


@contextmanager
def fine_tuning(**options: Any) -> Iterator[FineTuner]:
    """A provider with these options (see `tests.support.servers.fine_tune.Options`) for as long as the block runs."""
    with server_process("tests.support.servers.fine_tune", options) as (port, pid):
        yield FineTuner(port, pid)
