"""Servers that a `base_url` may name by mistake: web pages, a redirect, TLS.

    python -m tests.support.servers.not_an_api KIND

The first line on stdout is the port; each request that can be read is a further line. The server ends with its stdin.
"""

from __future__ import annotations

import json
import ssl
import sys
import threading
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

PAGE = b"<!DOCTYPE html>\n<html><body>Welcome</body></html>"
CERTIFICATE = Path(__file__).parents[2] / "fixtures" / "tls" / "server.pem"


class WebPage(BaseHTTPRequestHandler):
    """Answers every request with a page, as single-page applications do."""

    protocol_version = "HTTP/1.1"
    status = 200
    page = PAGE

    def do_POST(self) -> None:
        print(self.path, flush=True)
        self.rfile.read(int(self.headers.get("content-length", 0)))
        self.send_response(self.status)
        self.send_header("content-type", "text/html")
        self.send_header("content-length", str(len(self.page)))
        if 300 <= self.status < 400:
            self.send_header("location", "https://models.example/v1/chat/completions")
        self.end_headers()
        self.wfile.write(self.page)

    def log_message(self, *args: object) -> None:
        """Print nothing on stderr."""


class CommentedPage(WebPage):
    """A page as XHTML that begins with a byte order mark, a declaration and a comment."""

    page = b"\xef\xbb\xbf<?xml version='1.0'?>\n<!-- made by hand -->\n" + PAGE


class Text(WebPage):
    page = b"It works!"


class JsonList(WebPage):
    page = b"[]"


class Empty(WebPage):
    page = b""


class Status(WebPage):
    page = b'{"status": "ok"}'


class Flaky(WebPage):
    """A model API whose second to sixth answers are not completions."""

    requests = 0

    def do_POST(self) -> None:
        Flaky.requests += 1
        message = {"role": "assistant", "content": "Decision: accept"}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        completion = {"choices": [choice], "usage": {"prompt_tokens": 900, "completion_tokens": 4}}
        self.page = Status.page if 1 < Flaky.requests < 7 else json.dumps(completion).encode()
        super().do_POST()


class MissingPage(WebPage):
    status = 404


class Redirect(WebPage):
    status = 308


class Files(SimpleHTTPRequestHandler):
    """Python's own file server, which answers a POST with 501 and a page."""

    def log_request(self, code: object = "-", size: object = "-") -> None:
        print(code, flush=True)


class Greeter(BaseHTTPRequestHandler):
    """Sends the first bytes itself, and does not speak HTTP, like an SSH server."""

    def handle(self) -> None:
        self.wfile.write(b"SSH-2.0-OpenSSH_9.9\r\n")
        self.rfile.readline()


class Replier(BaseHTTPRequestHandler):
    """Answers each request as Redis does."""

    def handle(self) -> None:
        self.connection.recv(1 << 16)
        self.wfile.write(b"-ERR unknown command 'POST'\r\n")


KINDS = {
    "page": WebPage, "commented": CommentedPage, "text": Text, "missing": MissingPage, "redirect": Redirect,
    "files": Files, "tls": WebPage, "ssh": Greeter,
    "list": JsonList, "empty": Empty, "status": Status, "flaky": Flaky, "redis": Replier,
}  # fmt: skip


class Server(ThreadingHTTPServer):
    """A server whose failed handshakes are not printed."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing: the tests expect clients that speak another protocol."""


def main() -> None:
    server = Server(("127.0.0.1", 0), KINDS[sys.argv[1]])
    if sys.argv[1] == "tls":
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(CERTIFICATE)
        server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
    print(server.server_address[1], flush=True)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    sys.stdin.read()


if __name__ == "__main__":
    main()
