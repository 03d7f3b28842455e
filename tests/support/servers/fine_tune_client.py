"""Run the provider that fine-tunes models."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.batch_client import BatchProvider
from tests.support.servers.client import run_loopback_server


class FineTuningProvider(BatchProvider):
    """A running provider that fine-tunes models; `recorded_requests()` has all requests except chat completions."""

    def jobs(self) -> list[dict[str, Any]]:
        """Return the created jobs, each with the `body` of the request and the `sha256` of its file."""
        jobs: list[dict[str, Any]] = self.request_json("/jobs")
        return jobs

    def files(self) -> list[dict[str, Any]]:
        """Return the uploaded files."""
        files: list[dict[str, Any]] = self.request_json("/files")
        return files

    def set_job(self, name: str, **fields: Any) -> None:
        """Set the `status`, `error` or `model` of a job, which then no longer changes by itself."""
        self.request_json("/set", {"id": name, **fields})


def run_fine_tuning_provider(**options: Any) -> AbstractContextManager[FineTuningProvider]:
    """Run a provider with these options (see `tests.support.servers.fine_tune.Options`)."""
    return run_loopback_server(FineTuningProvider, "fine_tune", **options)
