"""A server that runs until it is told to end."""

from __future__ import annotations

import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from urllib.parse import urlsplit

import uvicorn

from runner.base.errors import RunError, UsageError
from runner.base.storage.safe_files import make_folders
from runner.server.folder_import import check_imported
from runner.server.rebuild import alone
from runner.server.service import Service
from runner.server.settings import Settings
from runner.server.web.app import application
from runner.server.web.connections import bounded
from runner.server.web.observability import log_to_stderr

ENDING_SECONDS = 20
"""That requests have to end in, once the server is told to."""


def serve(
    settings: Settings,
    host: str,
    port: int,
    tell: Callable[[str, str], None],
    *,
    address: str | None,
    bare: bool,
    imported: bool = False,
) -> None:
    """Answer requests until SIGINT or SIGTERM; `tell` is told its address, and where it listens, once it can be asked.

    `bare`: other machines may ask, though no proxy with TLS stands between. `imported`: the releases in the folder
    were imported, and the server serves without those that were refused.

    Raises:
        UsageError, RunError: its folder, database, blobs or port cannot be used.
    """
    _check_proxies(settings, address)
    if address is not None:
        _check_address(address, bare=bare)
    if not _is_loopback(host) and not settings.proxies and not bare:
        raise UsageError(
            f"--host {host}: other machines can ask there, and this server speaks no TLS, so that anybody on the "
            "way could read tokens and change what is published; put a reverse proxy with TLS before it and say "
            "--behind-proxy NETWORK, or say --without-tls where the network itself is trusted"
        )
    with _own(settings), _listening(host, port) as listening:
        here = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
        any_name = address is None and not _is_loopback(host)
        server = Service.of(replace(settings, address=(address or here).rstrip("/"), any_name=any_name))
        try:
            if not server.database.hold():
                raise RunError("another server has this database; a database belongs to one server")
            if not imported:
                check_imported(server)
            _run(server, listening, lambda: tell(server.settings.address, here))
        finally:
            server.database.close()


def _run(server: Service, listening: socket.socket, tell: Callable[[], None]) -> None:
    log_to_stderr()
    config = uvicorn.Config(
        application(server), log_config=None, access_log=False, server_header=False, date_header=True,
        http=bounded(server.settings), ws="none", timeout_keep_alive=20, proxy_headers=False,
        timeout_graceful_shutdown=ENDING_SECONDS,
    )  # fmt: skip
    try:
        _Server(config, tell).run(sockets=[listening])
    except SystemExit as error:
        raise RunError("the server could not begin; the lines above say why") from error


class _Server(uvicorn.Server):
    """Says when it can be asked; ends well when it is told to, and not once more by the signal that told it."""

    def __init__(self, config: uvicorn.Config, tell: Callable[[], None]) -> None:
        super().__init__(config)
        self._tell = tell

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._tell()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _check_proxies(settings: Settings, address: str | None) -> None:
    for network in settings.proxies:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise UsageError(f"--behind-proxy {network}: {error}; write 127.0.0.1, or 10.0.0.0/8") from error
    if settings.proxies and address is None:
        raise UsageError("--behind-proxy: say with --address https://... where the proxy is found, which links name")


def _check_address(address: str, *, bare: bool) -> None:
    """Raises: UsageError: no link can begin so, or whoever follows one would send a token without TLS."""
    try:
        said = urlsplit(address)
        port_is_good = said.port != 0
    except ValueError as error:
        raise UsageError(f"--address {address}: {error}; write https://registry.example.org") from error
    is_whole = said.scheme in ("http", "https") and said.hostname and not said.username and port_is_good
    if not is_whole or said.path not in ("", "/") or said.query or said.fragment:
        raise UsageError(f"--address {address}: links begin with it; write https://HOST, without a path")
    if said.scheme == "http" and not _is_loopback(str(said.hostname)) and not bare:
        raise UsageError(
            f"--address {address}: anybody on the way would read tokens, and clients refuse it; write https://, for "
            "the proxy with TLS that stands before this server"
        )


@contextmanager
def _own(settings: Settings) -> Iterator[None]:
    """Be the one server of a folder."""
    with alone(settings):
        try:
            make_folders(settings.incoming)
        except OSError as error:
            raise RunError(f"the server's folder {settings.folder} cannot be written: {error.strerror}") from error
        yield


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
