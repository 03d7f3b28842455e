"""A page server for this machine only: it listens on loopback, and every address must contain a random token.

The server looks up answers by name in its `LiveContent`; a request never becomes a file path. Other sites cannot read
from the server, because there is no CORS and the token is secret. They cannot write, because the server accepts only
JSON from the same origin. They cannot use another host name for the server, because it checks the Host header.
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
from runner.base.storage.strict_json import parse_strict_json
from runner.version import __version__

ADDRESS = "127.0.0.1"
TOKEN_BYTES = 24
MAX_BODY = 256 << 10
"""Maximum bytes of a note's JSON, with escaped text."""
MAX_CONNECTIONS = 32
"""Maximum number of requests at the same time."""
REQUEST_SECONDS = 20.0
"""Time limit for receiving a request, and again for sending its answer."""

HEADERS = {
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


class LiveContent(Protocol):
    """The content of a server. Several threads call its methods."""

    def page(self) -> bytes:
        """Return the page."""

    def piece(self, name: str) -> bytes | None:
        """Return a compressed piece of the page's data, or None if there is no piece with this name."""

    def state(self) -> bytes:
        """Return the state that the page's script requests repeatedly, as JSON."""

    def post(self, name: str, data: Mapping[str, object]) -> dict[str, object] | None:
        """Save what the page has sent under a name, and return the answer; None if the content has no such name.

        Raises:
            UsageError: the data is invalid.
        """

    def policy(self) -> str:
        """Return the page's content security policy."""


class PageServer(ThreadingHTTPServer):
    """Serves one page until it is closed."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, content: LiveContent, port: int = 0) -> None:
        """Listen on the port; 0 chooses a free one.

        Raises:
            UsageError: the port is in use or privileged.
            RunError: the server cannot listen.
        """
        self.content = content
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self._slots = threading.BoundedSemaphore(MAX_CONNECTIONS)
        try:
            super().__init__((ADDRESS, port), RequestHandler)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise UsageError(f"port {port} is in use; choose another --port, or leave it out") from error
            if error.errno == errno.EACCES:
                raise UsageError(f"no permission to use port {port}; choose a --port from 1024 on") from error
            raise RunError(f"cannot listen on {ADDRESS}:{port}: {error.strerror}; choose another --port") from error
        self.hosts = {f"{name}:{self.server_port}" for name in (ADDRESS, "localhost")}

    def server_bind(self) -> None:
        """Bind without looking up the name of this machine, which may take long."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = ADDRESS, self.server_address[1]

    @property
    def address(self) -> str:
        """The address of the page with the token. It must not appear in a log, a terminal or a process argument."""
        return f"http://{ADDRESS}:{self.server_port}/{self.token}/"

    @property
    def redirect_page(self) -> bytes:
        """A page for a private file that redirects a browser to the address."""
        return (
            f'<!doctype html><meta charset="utf-8"><meta name="referrer" content="no-referrer"><title>nip-run'
            f'</title><meta http-equiv="refresh" content="0; url={self.address}"><a href="{self.address}">Open</a>\n'
        ).encode()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Handle the request in a thread, or close the connection if there are too many."""
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Handle the request, then release its slot for another request."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore the error, because the client has disconnected or was too slow."""


class _DeadlineReader(io.RawIOBase):
    """Reads from a connection until a deadline, however slowly the data arrives."""

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
    """Answers one request."""

    protocol_version = "HTTP/1.1"
    server: PageServer

    def setup(self) -> None:
        """Set up the request with a deadline for reading."""
        super().setup()
        self.rfile.close()
        self.rfile = io.BufferedReader(_DeadlineReader(self.connection, time.monotonic() + REQUEST_SECONDS))

    def do_GET(self) -> None:
        """Answer with the page, a piece of its data, or the state of its runs."""
        name = self._requested_name()
        if name is None:
            return
        try:
            self._get(name)
        except NipRunError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, orjson.dumps({"error": _message(error)}), _JSON)

    def do_HEAD(self) -> None:
        """Answer like `GET`, without a body."""
        self.do_GET()

    def _get(self, name: str) -> None:
        content = self.server.content
        if name == "":
            self._answer(HTTPStatus.OK, content.page(), _HTML)
        elif name == "state.json":
            self._answer(HTTPStatus.OK, content.state(), _JSON)
        else:
            match = _PIECE.fullmatch(name)
            piece = None if match is None else content.piece(match[1])
            if piece is None:
                self._refuse(HTTPStatus.NOT_FOUND)
            else:
                self._answer(HTTPStatus.OK, piece, _GZIP)

    def do_POST(self) -> None:
        """Save a note, or anything else that the page sends."""
        name = self._requested_name()
        if name is None:
            return
        error_status = self._post_error()
        if error_status is not None:
            self._refuse(error_status)
            return
        body = self.rfile.read(int(self.headers["Content-Length"]))
        try:
            data = parse_strict_json(body)
            if not isinstance(data, dict):
                raise UsageError("the request's body must be a JSON object")
            answer = self.server.content.post(name, data)
        except (UsageError, ValueError) as error:
            self._answer(HTTPStatus.BAD_REQUEST, orjson.dumps({"error": _message(error)}), _JSON)
        except NipRunError as error:
            self._answer(HTTPStatus.INTERNAL_SERVER_ERROR, orjson.dumps({"error": _message(error)}), _JSON)
        else:
            if answer is None:
                self._refuse(HTTPStatus.NOT_FOUND)
            else:
                self._answer(HTTPStatus.CREATED, orjson.dumps(answer), _JSON)

    def _post_error(self) -> HTTPStatus | None:
        """Return the error status of an invalid POST request, or None. The body has not been read yet."""
        site = self.headers.get("Sec-Fetch-Site", "same-origin")
        if self._is_cross_origin() or site not in ("same-origin", "none"):
            return HTTPStatus.FORBIDDEN
        if self.headers.get_content_type() != _JSON or "Content-Type" not in self.headers:
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        lengths = self.headers.get_all("Content-Length", [])
        if "Transfer-Encoding" in self.headers or len(lengths) != 1 or not re.fullmatch(r"[0-9]{1,12}", lengths[0]):
            return HTTPStatus.LENGTH_REQUIRED
        return HTTPStatus.REQUEST_ENTITY_TOO_LARGE if int(lengths[0]) > MAX_BODY else None

    def _is_cross_origin(self) -> bool:
        origins = self.headers.get_all("Origin", [])
        return any(origin != f"http://{self.headers['Host']}" for origin in origins)

    def _requested_name(self) -> str | None:
        """Return the part of the path after the token, or None if the request was refused."""
        if self.headers.get_all("Host", []) not in [[host] for host in self.server.hosts]:
            self._refuse(HTTPStatus.MISDIRECTED_REQUEST)
            return None
        path_token, slash, name = self.path.removeprefix("/").partition("?")[0].partition("/")
        given_token, token = path_token.encode("utf-8", "surrogateescape"), self.server.token.encode()
        if not hmac.compare_digest(given_token, token) or not slash or not self.path.startswith("/"):
            self._refuse(HTTPStatus.NOT_FOUND)
            return None
        return name

    def _refuse(self, status: HTTPStatus) -> None:
        """Answer with an error status and no body."""
        self._answer(status, b"", _JSON)

    def _answer(self, status: HTTPStatus, body: bytes, kind: str) -> None:
        self.close_connection = True
        self.request_version = self.protocol_version  # also for invalid requests and HTTP/0.9
        self.connection.settimeout(REQUEST_SECONDS)
        self.send_response_only(status)
        policy = f"{self.server.content.policy()}; frame-ancestors 'none'"
        headers = {"Content-Security-Policy": policy, **HEADERS, "Content-Type": kind, "Content-Length": str(len(body))}
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer an unreadable request with a status and no body."""
        del message, explain
        self._refuse(HTTPStatus(code))

    def version_string(self) -> str:
        return f"nip-run/{__version__}"

    def log_message(self, *_: Any) -> None:
        """Log nothing, because the path contains the token."""


def _message(error: Exception) -> str:
    """Return an error's message without characters that JSON cannot represent."""
    return str(error).encode("utf-8", "replace").decode()
