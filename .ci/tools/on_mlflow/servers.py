"""A proxy that kills the exporter or fails instead of MLflow, and a slow model server."""

from __future__ import annotations

import hashlib
import http.client
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietServer(ThreadingHTTPServer):
    """A server that prints no error when its client is killed."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class InterceptingProxy(QuietServer):
    """A proxy that forwards requests, kills its client at one of them, or fails from one of them on."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.port, self.request_count = port, 0
        self.kill_at, self.kill_after_forwarding = 0, False
        """The number of the request that kills the client, and whether it is forwarded first."""
        self.failing_from: int | None = None
        self.failure_response: tuple[int, str, bytes] = (500, "text/html", b"<h1>Internal Server Error</h1>")
        """The status, content type and body of each answer from request `failing_from` on."""
        self.victim: subprocess.Popen[str] | None = None
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self) -> int:
        with self.lock:
            self.request_count += 1
            return self.request_count

    def kill(self) -> None:
        while self.victim is None:
            time.sleep(0.01)
        self.victim.kill()
        self.victim.wait()


HOP_HEADERS = ("host", "connection", "transfer-encoding", "content-length")


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: InterceptingProxy

    def _forward(self) -> None:
        body = self._body()
        count = self.server.count()
        is_kill_due = count == self.server.kill_at
        if is_kill_due and not self.server.kill_after_forwarding:
            self.server.kill()
            return
        if self.server.failing_from is not None and count >= self.server.failing_from:
            status, kind, content = self.server.failure_response
            self._reply(status, [("Content-Type", kind)], content)
            return
        onward = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in HOP_HEADERS}
        onward.request(self.command, self.path, body, headers)
        answer = onward.getresponse()
        data = answer.read()
        if is_kill_due:
            self.server.kill()
            return
        self._reply(answer.status, answer.getheaders(), data)

    def _reply(self, status: int, headers: Sequence[tuple[str, str]], data: bytes) -> None:
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in ("content-length", "transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _body(self) -> bytes:
        """Read the request body, which is chunked for an empty file."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _forward  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        """Say nothing."""


class SlowModel(QuietServer):
    """A model server with slow answers."""

    seconds = 0.5

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.may_answer = threading.Event()
        self.may_answer.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Answer no requests inside the block, so that a run cannot end before its follower starts."""
        self.may_answer.clear()
        try:
            yield
        finally:
            self.may_answer.set()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SlowModel

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.may_answer.wait()
        time.sleep(self.server.seconds)
        stance = ("accept", "reject")[hashlib.sha256(body).digest()[0] % 2]
        message = {"role": "assistant", "content": f"I have looked.\n\nDecision: {stance}"}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        completion = {"id": "x", "object": "chat.completion", "created": 1, "model": "slow", "choices": [choice]}
        data = json.dumps({**completion, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        """Say nothing."""
