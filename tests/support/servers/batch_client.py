"""Starts the provider that keeps accounts."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.client import Loopback, running


class Provider(Loopback):
    """A running provider: `stats()` has its counts, and `billed` what it would ask for."""

    def billed_usd(self, dollars_in: float, dollars_out: float) -> float:
        """The bill at these prices for a million tokens."""
        billed = self.stats()["billed"]
        return float(billed["prompt_tokens"] * dollars_in + billed["completion_tokens"] * dollars_out) / 1e6


def providing(**options: Any) -> AbstractContextManager[Provider]:
    """A provider with these options (see `tests.support.servers.batch.Options`) for as long as the block runs."""
    return running(Provider, "batch", **options)
