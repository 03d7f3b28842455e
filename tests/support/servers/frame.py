"""The base of the loopback servers: HTTP/1.1 on 127.0.0.1, routes, random faults, and statistics of requests.

    python -m tests.support.servers.NAME [--options JSON]

The first line on stdout is the port. The server ends when its stdin closes. In addition to its own paths, every server
has:

    GET /stats    GET /requests (the first `record` ones)    POST /options (changes some)

`Server.complete` answers chat completions, and `Server.routes` everything else.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import random
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import parse_qs

import orjson

COMPLETIONS = "/v1/chat/completions"
BUFFERED = 1 << 22
"""Bytes of a request that are read ahead; a head may not be longer."""


@dataclass
class Options:
    """The behavior of a server. Times are in seconds, shares are probabilities."""

    faults: dict[str, float] = field(default_factory=dict)
    """The share of each kind of fault, determined by a hash of body and attempt, so that retries succeed in the end."""
    max_faults: int = 3
    """Maximum number of faults for one body."""
    hang: float = 30.0
    port: int = 0
    """The port to listen on, so that a server can restart at the same port; 0 means any port."""
    record: int = 0
    """Number of requests to record for GET /requests."""
    held_after: int | None = None
    """Requests after this many wait until the test raises this number or sets it to null."""
    held_first: int = 0
    """This many of the first requests wait until the test lowers this number."""
    clock: bool = False
    """Record the time of each request for GET /stats."""

    def __post_init__(self) -> None:
        unknown = self.faults.keys() - set(self.kinds())
        if unknown:
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}")

    def kinds(self) -> Collection[str]:
        """Return the kinds of faults of this server."""
        return ()


class Request(NamedTuple):
    """A request. Header names are in lower case."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)

    def query_value(self, name: str, default: str = "") -> str:
        """Return a parameter of the query."""
        return parse_qs(self.query).get(name, [default])[0]


class Answer(NamedTuple):
    """A response, which is sent after `wait` seconds.

    If `cut` is not None, the connection is closed after so many bytes of the body.
    """

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    content_type: str = "application/json"
    wait: float = 0.0
    cut: int | None = None
    length: int | None = None
    """The value of Content-Length; None means the true length."""
    endless: bool = False
    """Whether the body is sent again and again until the client closes the connection."""

    def head(self) -> bytes:
        header_lines = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()]) if self.headers else ""
        return (
            f"HTTP/1.1 {self.status} X\r\ncontent-type: {self.content_type}\r\n"
            f"content-length: {len(self.body) if self.length is None else self.length}\r\n{header_lines}\r\n"
        ).encode("latin-1")


DROPPED = Answer(cut=0)
"""The connection is closed without a response."""


def json_answer(data: Any, status: int = 200) -> Answer:
    """Return a response with JSON."""
    return Answer(status, orjson.dumps(data))


def error(
    status: int, message: str, code: str | None = None, *, kind: str = "error", param: str | None = None
) -> Answer:
    """Return an error in OpenAI's format."""
    return json_answer({"error": {"message": message, "type": kind, "param": param, "code": code}}, status)


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


class Server:
    """Reads and counts requests, which a subclass answers."""

    options: Options

    def __init__(self, options: Options) -> None:
        self.options = options
        self.paths: Counter[str] = Counter()
        self.bodies: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.arrivals: list[float] = []
        self.requests = self.open = self.max_open = self.connections = self.body_bytes = 0
        self.recorded: list[dict[str, Any]] = []
        self._options_changed = asyncio.Event()
        self.routes: dict[str, Callable[..., Answer]] = {}
        """Handlers by method and path, such as `GET /v1/files/{}`. The handler gets the parts of the path for {}."""
        self.control_routes: dict[str, Callable[[Request], Answer]] = {
            "/stats": lambda request: json_answer(self.stats()),
            "/requests": lambda request: json_answer(self.recorded),
            "/options": self._change,
        }
        """Handlers of the requests that tests use to control the server, by path. These requests are not counted."""

    async def complete(self, request: Request) -> Answer:
        """Answer a chat completion."""
        raise NotImplementedError

    def stats(self) -> dict[str, Any]:
        return {
            "requests": self.requests, "open": self.open, "max_open": self.max_open, "connections": self.connections,
            "arrivals": self.arrivals, "body_bytes": self.body_bytes, "paths": self.paths, "bodies": self.bodies,
            "kinds": self.kinds,
        }  # fmt: skip

    def is_recorded(self, request: Request) -> bool:
        """Return whether GET /requests includes this request."""
        return True

    def count_attempt(self, digest: str) -> int:
        """Count a request; return how many requests with this body came before."""
        attempt = self.bodies[digest]
        self.bodies[digest] += 1
        return attempt

    def fault(self, seed: int, digest: str, attempt: int) -> str | None:
        """Return the fault for this attempt, or None."""
        if self.options.faults and attempt < self.options.max_faults:
            remaining = random.Random(f"{seed}/{digest}/{attempt}").random()
            for kind, probability in self.options.faults.items():
                remaining -= probability
                if remaining < 0:
                    return kind
        return None

    def _change(self, request: Request) -> Answer:
        try:
            self.options = replace(self.options, **request.json())
        except (TypeError, ValueError) as problem:
            return error(400, str(problem))
        self._options_changed.set()
        self._options_changed = asyncio.Event()
        return json_answer({})

    # The connection

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                request = await _read(reader)
                control = self.control_routes.get(request.path)
                answer = control(request) if control else await self._answer_and_count(request)
                head = answer.head()
                if answer.cut is None and not answer.endless:
                    writer.write(head + answer.body)
                    continue
                if answer.endless:
                    writer.write(head)
                while answer.endless:
                    writer.write(answer.body)
                    await writer.drain()
                if answer.cut:
                    writer.write(head + answer.body[: answer.cut])
                    await writer.drain()
                return
        except (asyncio.IncompleteReadError, ConnectionError, asyncio.LimitOverrunError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    async def _answer_and_count(self, request: Request) -> Answer:
        self.requests += 1
        number = self.requests
        if self.options.clock:
            self.arrivals.append(time.monotonic())
        self.paths[request.path] += 1
        self.body_bytes += len(request.body)
        if len(self.recorded) < self.options.record and self.is_recorded(request):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
            record = {"method": request.method, "path": request.path, "headers": headers}
            self.recorded.append({**record, "body": request.body.decode("utf-8", "replace")})
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            while self._is_held(number):
                await self._options_changed.wait()
            answer = await self.complete(request) if request.path == COMPLETIONS else self._route(request)
            if answer.wait:
                await asyncio.sleep(answer.wait)
        finally:
            self.open -= 1
        return answer

    def _is_held(self, number: int) -> bool:
        after = self.options.held_after
        return number <= self.options.held_first or (after is not None and number > after)

    def _route(self, request: Request) -> Answer:
        requested = f"{request.method} {request.path}".split("/")
        for route, handler in self.routes.items():
            parts = route.split("/")
            if len(parts) == len(requested) and all(
                part in ("{}", name) for part, name in zip(parts, requested, strict=True)
            ):
                return handler(request, *(name for part, name in zip(parts, requested, strict=True) if part == "{}"))
        return error(404, f"no such path {request.path}", kind="invalid_request_error")


async def _read(reader: asyncio.StreamReader) -> Request:
    first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].split(b"\r\n")
    method, target, _ = first.decode("latin-1").split(" ", 2)
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(b":") for line in lines)}
    path, _, query = target.partition("?")
    if headers.get(b"transfer-encoding") == b"chunked":
        body = b""
        while size := int(await reader.readline(), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        await reader.readline()
    else:
        body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
    return Request(method, path, query, headers, body)


# The process of a server


def run_server(server: type[Server], options: type[Options], description: str | None) -> None:
    """Run a server. This is the main function of the modules of servers."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--options", default="{}", metavar="JSON")
    server_options = options(**orjson.loads(parser.parse_args().options))
    try:
        asyncio.run(_serve(server(server_options)))
    except KeyboardInterrupt:
        sys.exit(130)


async def _serve(server: Server) -> None:
    stdin_closed, loop = asyncio.Event(), asyncio.get_running_loop()
    port = server.options.port
    socket_server = await asyncio.start_server(server.connected, "127.0.0.1", port, backlog=4096, limit=BUFFERED)
    print(socket_server.sockets[0].getsockname()[1], flush=True)

    def wait_until_stdin_closes() -> None:
        while sys.stdin.buffer.read(1):
            pass
        loop.call_soon_threadsafe(stdin_closed.set)

    threading.Thread(target=wait_until_stdin_closes, daemon=True).start()
    await stdin_closed.wait()
    socket_server.close()
