"""Starts a Hub of one's own: its API, and the host on which it keeps large files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.support.servers.client import Loopback, running

READ, WRITE = "hf_" + "r" * 30, "hf_" + "w" * 30
"""Tokens that the Hub takes, to read and to write with."""


@contextmanager
def running_hub(**options: Any) -> Iterator[tuple[Loopback, Loopback]]:
    """The Hub, and its storage, for as long as the block runs."""
    options = {"tokens": {READ: "read", WRITE: "write"}, "record": 100_000, **options}
    with ExitStack() as both:
        storage = both.enter_context(running(Loopback, "hub_storage"))
        yield both.enter_context(running(Loopback, "hub", storage=storage.root, **options)), storage
