"""Run the provider with batch requests, which keeps account of costs."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.client import LoopbackServer, run_loopback_server


class BatchProvider(LoopbackServer):
    """A running provider. Its `stats()` include `billed`, the tokens that it would charge for."""

    def billed_usd(self, dollars_in: float, dollars_out: float) -> float:
        """Return the bill at these prices per million tokens."""
        billed = self.stats()["billed"]
        return float(billed["prompt_tokens"] * dollars_in + billed["completion_tokens"] * dollars_out) / 1e6


def run_batch_provider(**options: Any) -> AbstractContextManager[BatchProvider]:
    """Run a provider with these options (see `tests.support.servers.batch.Options`)."""
    return run_loopback_server(BatchProvider, "batch", **options)
