"""Servers that are between the exporter and MLflow, to kill it or to fail, and a model that takes its time."""

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


class Quiet(ThreadingHTTPServer):
    """A server that says nothing of a client that was killed."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Between(Quiet):
    """Hands requests on to a server; kills who asks at one of them, or answers in its place from one on."""

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Forward)
        self.port, self.asked = port, 0
        self.at, self.after = 0, False
        """At which request who asks is killed; once it is handed on, or before."""
        self.fails_from: int | None = None
        self.said: tuple[int, str, bytes] = (500, "text/html", b"<h1>Internal Server Error</h1>")
        """From which request on what is answered: a status, a type, a body."""
        self.victim: subprocess.Popen[str] | None = None
        self.guard = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def count(self) -> int:
        with self.guard:
            self.asked += 1
            return self.asked

    def kill(self) -> None:
        while self.victim is None:
            time.sleep(0.01)
        self.victim.kill()
        self.victim.wait()


OF_A_HOP = ("host", "connection", "transfer-encoding", "content-length")


class _Forward(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Between

    def _any(self) -> None:
        body = self._body()
        count = self.server.count()
        due = count == self.server.at
        if due and not self.server.after:
            self.server.kill()
            return
        if self.server.fails_from is not None and count >= self.server.fails_from:
            status, kind, said = self.server.said
            self._reply(status, [("Content-Type", kind)], said)
            return
        onward = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=120)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in OF_A_HOP}
        onward.request(self.command, self.path, body, headers)
        answer = onward.getresponse()
        data = answer.read()
        if due:
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
        """What was sent; an empty file comes in chunks."""
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _any  # noqa: N815 - the names that http.server calls

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        """Say nothing."""


class SlowModel(Quiet):
    """A model that takes a moment to answer."""

    seconds = 0.5

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.answers = threading.Event()
        self.answers.set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def uri(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @contextmanager
    def silent(self) -> Iterator[None]:
        """It answers nothing meanwhile, so that no run ends before what is beside it has begun."""
        self.answers.clear()
        try:
            yield
        finally:
            self.answers.set()


class _Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: SlowModel

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.answers.wait()
        time.sleep(self.server.seconds)
        stance = ("accept", "reject")[hashlib.sha256(body).digest()[0] % 2]
        message = {"role": "assistant", "content": f"I have looked.\n\nDecision: {stance}"}
        usage = {"prompt_tokens": 9, "completion_tokens": 5, "total_tokens": 14}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        said = {"id": "x", "object": "chat.completion", "created": 1, "model": "slow", "choices": [choice]}
        data = json.dumps({**said, "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        """Say nothing."""
