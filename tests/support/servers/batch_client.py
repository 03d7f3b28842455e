"""Starts the provider that keeps accounts in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.servers.chat_client import Loopback
from tests.support.subprocess_server import server_process


class Provider(Loopback):
    """A running provider: `stats()` has its counts, and `billed` what it would ask for."""

    def billed_usd(self, dollars_in: float, dollars_out: float) -> float:
        """The bill at these prices for a million tokens."""
        billed = self.stats()["billed"]
        return float(billed["prompt_tokens"] * dollars_in + billed["completion_tokens"] * dollars_out) / 1e6


@contextmanager
def providing(**options: Any) -> Iterator[Provider]:
    """A provider with these options (see `tests.support.servers.batch.Options`) for as long as the block runs."""
    with server_process("tests.support.servers.batch", options) as (port, pid):
        yield Provider(port, pid)
