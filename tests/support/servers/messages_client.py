"""Run the server of the Messages API."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.client import LoopbackServer, run_loopback_server


class MessagesServer(LoopbackServer):
    """A running server. Its base URL does not include a version."""

    @property
    def base_url(self) -> str:
        return self.root


def run_messages_server(**options: Any) -> AbstractContextManager[MessagesServer]:
    """Run a server with these options (see `tests.support.servers.messages.Options`)."""
    return run_loopback_server(MessagesServer, "messages", **options)
