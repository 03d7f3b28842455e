"""Run a local Hub: its API, and the host that stores its large files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.support.servers.client import LoopbackServer, run_loopback_server

READ_TOKEN, WRITE_TOKEN = "hf_" + "r" * 30, "hf_" + "w" * 30
"""Tokens of the Hub for reading and for writing."""


@contextmanager
def run_hub(**options: Any) -> Iterator[tuple[LoopbackServer, LoopbackServer]]:
    """Run the Hub and its storage."""
    options = {"tokens": {READ_TOKEN: "read", WRITE_TOKEN: "write"}, "record": 100_000, **options}
    with ExitStack() as stack:
        storage = stack.enter_context(run_loopback_server(LoopbackServer, "hub_storage"))
        yield stack.enter_context(run_loopback_server(LoopbackServer, "hub", storage=storage.root, **options)), storage
