"""Starts the provider that fine-tunes."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.batch_client import Provider
from tests.support.servers.client import running


class FineTuner(Provider):
    """A running provider that fine-tunes; `recorded()` has all requests but chat."""

    def jobs(self) -> list[dict[str, Any]]:
        """The jobs as they were created, each with the `body` it was asked for by and its file's `sha256`."""
        found: list[dict[str, Any]] = self.ask("/jobs")
        return found

    def files(self) -> list[dict[str, Any]]:
        """What was uploaded."""
        found: list[dict[str, Any]] = self.ask("/files")
        return found

    def set_job(self, name: str, **fields: Any) -> None:
        """Take a job into one's own hands: its `status`, `error` or `model`."""
        self.ask("/set", {"id": name, **fields})


def fine_tuning(**options: Any) -> AbstractContextManager[FineTuner]:
    """A provider with these options (see `tests.support.servers.fine_tune.Options`) for as long as the block runs."""
    return running(FineTuner, "fine_tune", **options)
