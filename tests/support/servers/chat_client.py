"""Starts the server that answers chat completions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.client import Loopback, running


def serving(**options: Any) -> AbstractContextManager[Loopback]:
    """A server with these options (see `tests.support.servers.chat.Options`) for as long as the block runs."""
    return running(Loopback, "chat", **options)
