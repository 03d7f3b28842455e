"""Runs a server until a signal stops it: checks addresses, locks the folder, opens the port and starts uvicorn.

The command `nip-run serve` calls `serve`.
"""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import uvicorn

from runner.base.errors import RunError, UsageError, errors_as
from runner.server.folder_import import check_imported
from runner.server.rebuild import exclusive_access
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.web.app import create_app
from runner.server.web.callers import is_loopback
from runner.server.web.connections import connection_class
from runner.server.web.observability import log_to_stderr

STOP_SECONDS = 20
"""Time for open requests to finish after the signal to stop."""


def serve(
    settings: Settings,
    host: str,
    port: int,
    on_ready: Callable[[str, str], None],
    *,
    address: str | None,
    without_tls: bool,
    imported: bool = False,
) -> None:
    """Answer requests until SIGINT or SIGTERM.

    Once the server is ready, it calls `on_ready` with its public address and its local URL. `without_tls` lets other
    machines connect without TLS. `imported` means that the caller has just imported the releases in the folder. Then
    releases that exist only in the folder are not an error, because the import refused them.

    Raises:
        UsageError, RunError: the folder, the database, the blobs or the port cannot be used.
    """
    _check_proxies(settings, address)
    if address is not None:
        _check_address(address, without_tls=without_tls)
    if not is_loopback(host) and not settings.proxies and not without_tls:
        raise UsageError(
            f"--host {host} lets other machines connect without TLS, so that anyone on the network could read tokens "
            "and change releases; use a reverse proxy with TLS and --behind-proxy NETWORK, or --without-tls if you "
            "trust the network"
        )
    with exclusive_access(settings), _listen(host, port) as listener:
        local_url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}"
        any_host = address is None and not is_loopback(host)
        server = Service.open(replace(settings, address=(address or local_url).rstrip("/"), any_host=any_host))
        with closing(server.database):
            if not imported:
                check_imported(server)
            _run(server, listener, lambda: on_ready(server.settings.address, local_url))


def _run(server: Service, listener: socket.socket, on_ready: Callable[[], None]) -> None:
    """Answer requests from a listening socket until a signal stops the server."""
    log_to_stderr()
    config = uvicorn.Config(
        create_app(server), log_config=None, access_log=False, server_header=False, date_header=True,
        http=connection_class(server.settings), ws="none", timeout_keep_alive=20, proxy_headers=False,
        timeout_graceful_shutdown=STOP_SECONDS,
    )  # fmt: skip
    try:
        _Server(config, on_ready).run(sockets=[listener])
    except SystemExit as error:  # uvicorn exits if the application cannot start
        raise RunError("the server could not start; see the log above for the reason") from error


class _Server(uvicorn.Server):
    """A uvicorn server that calls `on_ready` once it is ready. Unlike uvicorn's, it returns normally after a signal."""

    def __init__(self, config: uvicorn.Config, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        old_handlers = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in old_handlers.items():
                signal.signal(number, handler)


def _check_proxies(settings: Settings, address: str | None) -> None:
    """Raise UsageError if a proxy is not a network, or if proxies are set without the server's public address."""
    for network in settings.proxies:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise UsageError(
                f"--behind-proxy {network}: {error}; write an address such as 127.0.0.1 or a network such as 10.0.0.0/8"
            ) from error
    if settings.proxies and address is None:
        raise UsageError("--behind-proxy also needs --address: add the proxy's public URL, --address https://HOST")


def _check_address(address: str, *, without_tls: bool) -> None:
    """Raise UsageError if an address is not the URL of a host, or if clients would send tokens to it without TLS."""
    with errors_as(UsageError, f"--address {address}", ValueError, advice="; write https://registry.example.org"):
        url = urlsplit(address)
        is_port_valid = url.port != 0
    is_absolute = url.scheme in ("http", "https") and url.hostname and not url.username and is_port_valid
    if not is_absolute or url.path not in ("", "/") or url.query or url.fragment:
        raise UsageError(f"--address {address} is not the URL of a host; write https://HOST, without a path")
    if url.scheme == "http" and not is_loopback(str(url.hostname)) and not without_tls:
        raise UsageError(
            f"--address {address} has no TLS, so that anyone on the network could read tokens, and clients refuse it; "
            "write the https:// URL of the reverse proxy with TLS in front of this server"
        )


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket. It is opened before the server starts, so that the port is known."""
    try:
        family, kind, _, _, socket_address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise UsageError(
            f"--host {host} is not an address of this machine; use 127.0.0.1 for connections from this machine only, "
            "or 0.0.0.0 for connections from all networks"
        ) from error
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(socket_address)
        listener.listen(2048)
    except OSError as error:
        listener.close()
        raise RunError(f"Cannot listen on {host}:{port}: {error.strerror}. Choose another --port.") from error
    listener.setblocking(False)
    return listener
