"""A server of pages for this machine alone: loopback, a random word in every address, and nothing without it.

What it answers is looked up by name in what it serves; no path of a file is ever made of what was asked. A page of
another site can neither read it (no CORS, and the word is not known) nor write to it (JSON alone, from its own origin),
nor come to it by another name (the Host is checked, so that no name can be bound to this address).
"""

from __future__ import annotations

import errno
import hmac
import io
import re
import secrets
import socket
import threading
import time
from collections.abc import Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

import orjson

from runner.base.errors import NipRunError, RunError, UsageError
from runner.base.storage.strict_json import loads
from runner.pages.html import policy
from runner.version import __version__

ADDRESS = "127.0.0.1"
TOKEN_BYTES = 24
MAX_BODY = 256 << 10
"""Bytes of a note as it is sent: its text in escapes, at most."""
MAX_CONNECTIONS = 32
SECONDS = 20.0
"""For a request to come whole, and then for its answer to be taken."""

HEADERS = {
    "Content-Security-Policy": f"{policy(connects=True)}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Connection": "close",
}

_PIECE = re.compile(r"data/([\w-]{1,80})\.json\.gz", re.ASCII)
_HTML, _JSON, _GZIP = "text/html; charset=utf-8", "application/json", "application/gzip"


class Served(Protocol):
    """What a server serves. Called by several threads."""

    def page(self) -> bytes:
        """The page."""

    def piece(self, name: str) -> bytes | None:
        """A piece of the page's data, compressed; None where there is none of this name."""

    def state(self) -> bytes:
        """What the page's script asks for again and again, as JSON."""

    def note(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Keep a note; raises `UsageError` where it is none."""


class PageServer(ThreadingHTTPServer):
    """Serves one page until it is closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, served: Served, port: int = 0) -> None:
        """Raises:
        UsageError: the port is taken, or may not be.
        RunError: no port can be had.
        """
        self.served = served
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), RequestHandler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(f"port {port} is in use; take another one, or leave --port out") from error
            if error.errno == errno.EACCES:
                raise UsageError(f"port {port} is not yours to take; take one from 1024 on") from error
            raise RunError(f"cannot listen at {ADDRESS}: {error.strerror}") from error
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def server_bind(self) -> None:
        """Without asking what this machine is called, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    @property
    def address(self) -> str:
        """The address of the page, with the token: it must not reach a log, a terminal or an argument of a process."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    @property
    def redirect_page(self) -> bytes:
        """A page for a private file, which leads a browser to the address."""
        return (
            f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>nip-run view'
            f'</title><meta http-equiv="refresh" content="0; url={self.address}"><a href="{self.address}">Open</a>\n'
        ).encode()

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own; of too many at once the last are turned away."""
        if not self._free.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """As inherited."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Whoever asked is gone, or was too slow: that is nobody's concern."""


class _InTime(io.RawIOBase):
    """What comes from a connection until a deadline, however little of it comes at a time."""

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self._connection, self._deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = self._deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._connection.settimeout(left)
        return self._connection.recv_into(buffer)


class RequestHandler(BaseHTTPRequestHandler):
    """One request and its answer."""

    protocol_version = "HTTP/1.1"
    server: PageServer

    def setup(self) -> None:
        """As inherited, with a deadline."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_InTime(self.connection, time.monotonic() + SECONDS))

    def do_GET(self) -> None:
        """The page, its data, or how its runs stand."""
        name = self._name()
        if name is None:
            return
        try:
            self._get(name)
        except NipRunError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, orjson.dumps({"error": _said(error)}), _JSON)

    def do_HEAD(self) -> None:
        """What `GET` would answer, without it."""
        self.do_GET()

    def _get(self, name: str) -> None:
        served = self.server.served
        if name == "":
            self._answer(HTTPStatus.OK, served.page(), _HTML)
        elif name == "state.json":
            self._answer(HTTPStatus.OK, served.state(), _JSON)
        else:
            asked = _PIECE.fullmatch(name)
            piece = None if asked is None else served.piece(asked[1])
            if piece is None:
                self._refuse(HTTPStatus.NOT_FOUND)
            else:
                self._answer(HTTPStatus.OK, piece, _GZIP)

    def do_POST(self) -> None:
        """A note."""
        name = self._name()
        if name is None:
            return
        wrong = HTTPStatus.NOT_FOUND if name != "notes" else self._wrong_post()
        if wrong is not None:
            self._refuse(wrong)
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            data = loads(body)
            if not isinstance(data, dict):
                raise UsageError("a note is an object")
            kept = self.server.served.note(data)
        except (UsageError, ValueError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, orjson.dumps({"error": _said(error)}), _JSON)
        except NipRunError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, orjson.dumps({"error": _said(error)}), _JSON)
        else:
            self._answer(HTTPStatus.CREATED, orjson.dumps(kept), _JSON)

    def _wrong_post(self) -> HTTPStatus | None:
        """What is wrong with a request to keep something, before anything of it is read."""
        if self._origin_is_another() or self.headers.get("Sec-Fetch-Site", "same-origin") not in (
            "same-origin",
            "none",
        ):
            return HTTPStatus.FORBIDDEN
        if self.headers.get_content_type() != _JSON or "Content-Type" not in self.headers:
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,12}", lengths[0]):
            return HTTPStatus.LENGTH_REQUIRED
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if int(lengths[0]) > MAX_BODY else None

    def _origin_is_another(self) -> bool:
        origins = self.headers.get_all("Origin", [])
        return any(origin != f"http://{self.headers['Host']}" for origin in origins)

    def _name(self) -> str | None:
        """What is asked for, after the word; None where it was refused."""
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        word, slash, name = self.path.removeprefix("/").partition("?")[0].partition("/")
        said, token = word.encode("utf-8", "surrogateescape"), self.server.token.encode()
        if not hmac.compare_digest(said, token) or not slash or not self.path.startswith("/"):
            self._refuse(HTTPStatus.NOT_FOUND)
            return None
        return name

    def _refuse(self, status: HTTPStatus) -> None:
        self._answer(status, b"", _JSON)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.close_connection = True
        self.request_version = self.protocol_version  # also to what was no request, or one of a time without headers
        self.connection.settimeout(SECONDS)
        self.send_response_only(status)
        for name, value in {**HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """What could not be read as a request gets a bare status."""
        del message, explain
        self._refuse(HTTPStatus(code))

    def version_string(self) -> str:
        return f"nip-run/{__version__}"

    def log_message(self, *_: Any) -> None:
        """Nothing: what was asked has the word in it."""


def _said(error: Exception) -> str:
    """An error as JSON can hold it."""
    return str(error).encode("utf-8", "replace").decode()
