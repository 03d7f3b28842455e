"""Run the server of a planted analyst."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from tests.support.servers.client import LoopbackServer, run_loopback_server


def run_analyst(**options: Any) -> AbstractContextManager[LoopbackServer]:
    """Run a server with these options (see `tests.support.servers.analyst.Options`)."""
    return run_loopback_server(LoopbackServer, "analyst", **options)


def ask_at(server: LoopbackServer) -> list[str]:
    """Return the overrides that make `analyze` ask the analyst at a server."""
    return ["models.analyst.model=wise", f"models.analyst.base_url={server.base_url}"]
