"""What the loopback servers share: HTTP/1.1 on 127.0.0.1, routes, faults drawn by hash, what was asked and how often.

    python -m tests.support.servers.NAME [--options JSON]

The first line on stdout is the port; the server ends when its stdin closes. Every server has, besides what it plays:

    GET /stats    GET /requests (the first `record` ones)    POST /options (changes some)

Chat completions are answered by `Server.complete`, everything else by `Server.routes`.
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
    """How a server behaves. Times are seconds, shares are probabilities."""

    faults: dict[str, float] = field(default_factory=dict)
    """The share of each kind, drawn for each attempt of each body by its hash: a retry succeeds in the end."""
    max_faults: int = 3
    """A body that failed so often is answered."""
    hang: float = 30.0
    port: int = 0
    """Where it listens: one that comes back after it was down is at its old place. 0: at any."""
    record: int = 0
    """How many requests to keep for GET /requests."""
    held_after: int | None = None
    """Requests after this many are answered only once this is raised or null: the test decides when."""
    held_first: int = 0
    """So many of the first requests are answered only once this is lowered."""
    clock: bool = False
    """Keep when each request came, in seconds, for GET /stats."""

    def __post_init__(self) -> None:
        unknown = self.faults.keys() - set(self.kinds())
        if unknown:
            raise ValueError(f"no such fault: {', '.join(sorted(unknown))}")

    def kinds(self) -> Collection[str]:
        """The faults that this server knows."""
        return ()


class Request(NamedTuple):
    """One request as it came; names of headers are in lower case."""

    method: str
    path: str
    query: str
    headers: dict[bytes, bytes]
    body: bytes

    def json(self) -> Any:
        return orjson.loads(self.body)

    def asked(self, name: str, default: str = "") -> str:
        """A parameter of the query."""
        return parse_qs(self.query).get(name, [default])[0]


class Answer(NamedTuple):
    """What goes back after `wait` seconds; `cut` bytes of the body before the connection ends (None: it is kept)."""

    status: int = 200
    body: bytes = b""
    headers: Mapping[str, str] = MappingProxyType({})
    content_type: str = "application/json"
    wait: float = 0.0
    cut: int | None = None
    length: int | None = None
    """What it says of the length of its body; None: what is true."""
    endless: bool = False
    """Whether its body is sent again and again, until nobody reads it any more."""

    def head(self) -> bytes:
        more = "".join([f"{name}: {value}\r\n" for name, value in self.headers.items()]) if self.headers else ""
        return (
            f"HTTP/1.1 {self.status} X\r\ncontent-type: {self.content_type}\r\n"
            f"content-length: {len(self.body) if self.length is None else self.length}\r\n{more}\r\n"
        ).encode("latin-1")


DROPPED = Answer(cut=0)
"""The connection ends without a byte."""


def answered(data: Any, status: int = 200) -> Answer:
    """JSON."""
    return Answer(status, orjson.dumps(data))


def error(
    status: int, message: str, code: str | None = None, *, kind: str = "error", param: str | None = None
) -> Answer:
    """An error as OpenAI words it."""
    return answered({"error": {"message": message, "type": kind, "param": param, "code": code}}, status)


def digest_of(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()[:32]


class Server:
    """Reads requests, counts them, and has a subclass answer."""

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
        """By method and path, say `GET /v1/files/{}`; what stands in the place of {} is handed over."""
        self.asides: dict[str, Callable[[Request], Answer]] = {
            "/stats": lambda request: answered(self.stats()),
            "/requests": lambda request: answered(self.recorded),
            "/options": self._change,
        }
        """What the test itself asks, by path; never counted."""

    async def complete(self, request: Request) -> Answer:
        """Answer a chat completion."""
        raise NotImplementedError

    def stats(self) -> dict[str, Any]:
        return {
            "requests": self.requests, "open": self.open, "max_open": self.max_open, "connections": self.connections,
            "arrivals": self.arrivals, "body_bytes": self.body_bytes, "paths": self.paths, "bodies": self.bodies,
            "kinds": self.kinds,
        }  # fmt: skip

    def keeps(self, request: Request) -> bool:
        """Whether GET /requests shows it."""
        return True

    def attempted(self, digest: str) -> int:
        """How often a body came before."""
        attempt = self.bodies[digest]
        self.bodies[digest] += 1
        return attempt

    def fault(self, seed: int, digest: str, attempt: int) -> str | None:
        """The fault of this attempt, if it has one."""
        if self.options.faults and attempt < self.options.max_faults:
            draw = random.Random(f"{seed}/{digest}/{attempt}").random()
            for kind, probability in self.options.faults.items():
                draw -= probability
                if draw < 0:
                    return kind
        return None

    def _change(self, request: Request) -> Answer:
        try:
            self.options = replace(self.options, **request.json())
        except (TypeError, ValueError) as problem:
            return error(400, str(problem))
        self._options_changed.set()
        self._options_changed = asyncio.Event()
        return answered({})

    # The connection

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while True:
                request = await _read(reader)
                aside = self.asides.get(request.path)
                answer = aside(request) if aside else await self._counted(request)
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

    async def _counted(self, request: Request) -> Answer:
        self.requests += 1
        number = self.requests
        if self.options.clock:
            self.arrivals.append(time.monotonic())
        self.paths[request.path] += 1
        self.body_bytes += len(request.body)
        if len(self.recorded) < self.options.record and self.keeps(request):
            headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in request.headers.items()}
            shown = {"method": request.method, "path": request.path, "headers": headers}
            self.recorded.append({**shown, "body": request.body.decode("utf-8", "replace")})
        self.open += 1
        self.max_open = max(self.max_open, self.open)
        try:
            while self._is_held(number):
                await self._options_changed.wait()
            answer = await self.complete(request) if request.path == COMPLETIONS else self._routed(request)
            if answer.wait:
                await asyncio.sleep(answer.wait)
        finally:
            self.open -= 1
        return answer

    def _is_held(self, number: int) -> bool:
        after = self.options.held_after
        return number <= self.options.held_first or (after is not None and number > after)

    def _routed(self, request: Request) -> Answer:
        asked = f"{request.method} {request.path}".split("/")
        for route, handler in self.routes.items():
            parts = route.split("/")
            if len(parts) == len(asked) and all(part in ("{}", name) for part, name in zip(parts, asked, strict=True)):
                return handler(request, *(name for part, name in zip(parts, asked, strict=True) if part == "{}"))
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


# Its process


def run_server(server: type[Server], options: type[Options], about: str | None) -> None:
    """The main function of a server's module."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--options", default="{}", metavar="JSON")
    chosen = options(**orjson.loads(parser.parse_args().options))
    try:
        asyncio.run(_serve(server(chosen)))
    except KeyboardInterrupt:
        sys.exit(130)


async def _serve(server: Server) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    port = server.options.port
    listening = await asyncio.start_server(server.connected, "127.0.0.1", port, backlog=4096, limit=BUFFERED)
    print(listening.sockets[0].getsockname()[1], flush=True)

    def until_stdin_closes() -> None:
        while sys.stdin.buffer.read(1):
            pass
        loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=until_stdin_closes, daemon=True).start()
    await ended.wait()
    listening.close()
