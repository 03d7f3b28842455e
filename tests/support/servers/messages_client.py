"""Starts the server that speaks the Messages API."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.client import Loopback, running


class MessagesServer(Loopback):
    """A running server, whose base URL has no version in it."""

    @property
    def base_url(self) -> str:
        return self.root


def serving_messages(**options: Any) -> AbstractContextManager[MessagesServer]:
    """A server with these options (see `tests.support.servers.messages.Options`) for as long as the block runs."""
    return running(MessagesServer, "messages", **options)
