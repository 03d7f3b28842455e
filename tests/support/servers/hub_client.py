"""Starts a Hub of one's own: its API, and the host on which it keeps large files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.servers.client import Loopback, running

READ, WRITE = "hf_" + "r" * 30, "hf_" + "w" * 30
"""Tokens that the Hub takes, to read and to write with."""


@contextmanager
def running_hub(**options: Any) -> Iterator[tuple[Loopback, Loopback]]:
    """The Hub, and its storage, for as long as the block runs."""
    tokens = {READ: "read", WRITE: "write"}
    with running(Loopback, "hub_storage") as storage:
        with running(Loopback, "hub", **{"storage": storage.root, "tokens": tokens, "record": 500, **options}) as hub:
            yield hub, storage
