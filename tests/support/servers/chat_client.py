"""Run the server that answers chat completions."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.client import LoopbackServer, run_loopback_server


def run_chat_server(**options: Any) -> AbstractContextManager[LoopbackServer]:
    """Run a server with these options (see `tests.support.servers.chat.Options`)."""
    return run_loopback_server(LoopbackServer, "chat", **options)
