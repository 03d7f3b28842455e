"""Slow and endless answers of servers are given up in bounded time."""

from __future__ import annotations

import http.server
import json
import socketserver
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace

import pytest

from runner.base.errors import ReleaseError
from runner.registry.transports.http.transport import EXTRA_PAGES, HttpTransport
from runner.registry.transports.time_budget import TimeBudget
from runner.registry.transports.timeouts import Timeouts
from tests.support.hub_registry import SHORT_TIMEOUTS, registry
from tests.support.servers.client import LoopbackServer
from tests.support.threaded_server import serve_in_thread

SHORT = Timeouts(tries=2, wait=0.01, read=30.0, answer_seconds=0.3, request_seconds=0.05)
OK = b"HTTP/1.1 200 OK\r\n"

DRIPS = {
    "a header": (OK + b"x-a: ", b"b"),
    "interim answers": (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
    "the size of a chunk": (OK + b"transfer-encoding: chunked\r\n\r\n", b"0"),
    "a body of a declared length": (OK + b"content-length: 1000000\r\n\r\n", b" "),
    "a body without a length": (OK + b"connection: close\r\n\r\n", b" "),
}
"""Bytes that each server sends first, and bytes that it repeats before a single read times out."""


@contextmanager
def run_dripping_server(start: bytes, piece: bytes) -> Iterator[str]:
    """Run a server that answers requests with `start`, and then sends a piece every 20 ms until the client leaves."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with suppress(OSError):
                self.request.recv(1 << 16)
                self.request.sendall(start)
                while True:
                    time.sleep(0.02)
                    self.request.sendall(piece)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        block_on_close = False

    server = Server(("127.0.0.1", 0), Handler)
    with serve_in_thread(server):
        yield f"http://127.0.0.1:{server.server_address[1]}"


def list_releases(address: str) -> None:
    with closing_transport(address) as transport:
        list(transport.list_releases())


def read_file(address: str) -> None:
    with closing_transport(address) as transport, transport.open("run/acme/x/1/release.json") as file:
        file.read()


@contextmanager
def closing_transport(address: str) -> Iterator[HttpTransport]:
    transport = HttpTransport(address, timeouts=SHORT)
    try:
        yield transport
    finally:
        transport.close()


@pytest.mark.gate
@pytest.mark.sample(3)
@pytest.mark.parametrize("drip", DRIPS)
@pytest.mark.parametrize("read", [list_releases, read_file])
def test_registry_that_sends_little_by_little_is_given_up(drip: str, read: Callable[[str], None]) -> None:
    with (
        run_dripping_server(*DRIPS[drip]) as address,
        pytest.raises(ReleaseError, match=r"the server is too slow: [0-9,]+ bytes in"),
    ):
        read(address)


@pytest.mark.gate
@pytest.mark.parametrize("drip", DRIPS)
def test_hub_that_sends_little_by_little_is_given_up(drip: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with run_dripping_server(*DRIPS[drip]) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with (
            registry("acme/open", timeouts=replace(SHORT, tries=1)) as hub,
            pytest.raises(ReleaseError, match="the server is too slow"),
        ):
            hub.entries()


@pytest.mark.gate
def test_listing_of_endless_short_pages_is_given_up() -> None:
    """Every page is valid, has one new entry, and names a next page."""
    request_count = 0

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            nonlocal request_count
            request_count += 1
            release = {"folder": f"run/acme/x/{request_count}", "sha256": "a" * 64, "yanked": None, "signed": False}
            page = {"releases": [release], "next": f"{request_count}"}
            body = json.dumps(page).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    with (
        serve_in_thread(server),
        closing_transport(f"http://127.0.0.1:{server.server_port}") as transport,
        pytest.raises(ReleaseError, match="that does not end"),
    ):
        list(transport.list_releases())
    assert request_count == EXTRA_PAGES + 1


@pytest.mark.gate
def test_hub_listing_has_a_limited_number_of_pages(hub: LoopbackServer, published: str) -> None:
    hub.change(mode="endless_pages")
    with (
        registry(published, timeouts=replace(SHORT_TIMEOUTS, requests=12)) as opened_registry,
        pytest.raises(ReleaseError, match="more than 12 requests are needed"),
    ):
        opened_registry.entries()


class Clock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.gate
def test_time_budget_grows_with_requests_and_bytes() -> None:
    clock = Clock()
    budget = TimeBudget(Timeouts(answer_seconds=10.0, request_seconds=2.0, rate=100), RuntimeError, clock)

    def step(seconds: float, size: int) -> Callable[[float], int]:
        def take(_: float) -> int:
            clock.now += seconds
            return size

        return take

    assert budget.seconds_left == 10.0
    budget.begin_request()
    budget.run_step(step(5.0, 300), None, int)
    assert budget.seconds_left == 10.0 + 2.0 + 3.0 - 5.0
    clock.now += 1_000  # time between two requests does not count
    timeouts: list[float] = []
    budget.run_step(timeouts.append, 60.0)
    budget.run_step(timeouts.append, 1.0)
    assert timeouts == [10.0, 1.0]
    budget.run_step(step(10.0, 0), None, int)
    with pytest.raises(RuntimeError, match=r"the server is too slow: 300 bytes in 15 seconds; try again later"):
        budget.run_step(timeouts.append, 1.0)


@pytest.mark.gate
def test_step_that_fails_after_the_time_budget_is_reported_as_too_slow() -> None:
    clock = Clock()
    budget = TimeBudget(Timeouts(answer_seconds=10.0), RuntimeError, clock)

    def fail(_: float) -> None:
        clock.now += 6.0
        raise TimeoutError

    with pytest.raises(TimeoutError):
        budget.run_step(fail, 6.0)
    with pytest.raises(RuntimeError, match="too slow"):
        budget.run_step(fail, 6.0)
