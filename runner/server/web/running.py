"""A server that runs until it is told to end."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import replace

import uvicorn

from runner.errors import RunError, UsageError
from runner.server.service import Server
from runner.server.settings import Settings
from runner.server.web.app import application
from runner.storage.files import make_folders


def serve(settings: Settings, host: str, port: int, tell: Callable[[str, str], None], *, address: str | None) -> None:
    """Answer requests until SIGINT or SIGTERM; `tell` is told its address, and where it listens, once it can be asked.

    Raises:
        UsageError, RunError: its folder, database, blobs or port cannot be used.
    """
    try:
        make_folders(settings.incoming)
    except OSError as error:
        raise RunError(f"the server's folder {settings.folder} cannot be written: {error.strerror}") from error
    with _listening(host, port) as listening:
        named = f"[{host}]" if ":" in host else host
        here = f"http://{named}:{listening.getsockname()[1]}"
        server = Server.of(replace(settings, address=(address or here).rstrip("/")))
        config = uvicorn.Config(
            application(server), log_config=None, access_log=False, server_header=False, date_header=True,
            timeout_keep_alive=20, limit_concurrency=512, proxy_headers=False,
        )  # fmt: skip
        tell(server.settings.address, here)
        uvicorn.Server(config).run(sockets=[listening])
        server.database.close()


def _listening(host: str, port: int) -> socket.socket:
    """A socket that waits for connections from now on, so that the port is known before anybody is told of it."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(
            f"--host {host}: no such address; 127.0.0.1 is this machine, 0.0.0.0 all its addresses"
        ) from error
    listening = socket.socket(found[0], found[1])
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(found[4])
        listening.listen(2048)
    except OSError as error:
        listening.close()
        raise RunError(f"port {port} of {host} cannot be listened at: {error.strerror}; another --port?") from error
    listening.setblocking(False)
    return listening
