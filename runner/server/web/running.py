"""A server that runs until it is told to end."""

from __future__ import annotations

from collections.abc import Callable

import uvicorn

from runner.server.settings import Settings
from runner.server.web.app import Server, application
from runner.storage.files import make_folders


def serve(settings: Settings, host: str, port: int, tell: Callable[[str], None]) -> None:
    """Answer requests until SIGINT or SIGTERM.

    Raises:
        UsageError, RunError: its database, its blobs or its port cannot be used.
    """
    make_folders(settings.incoming)
    server = Server.of(settings)
    config = uvicorn.Config(
        application(server), host=host, port=port, log_config=None, access_log=False, server_header=False,
        date_header=True, timeout_keep_alive=20, limit_concurrency=512, proxy_headers=False,
    )  # fmt: skip
    tell(f"nip-run registry at {settings.address}")
    uvicorn.Server(config).run()
    server.database.close()
