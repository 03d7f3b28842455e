"""Run a loopback server in its own process, and read the requests that it got."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class LoopbackServer:
    """A running server."""

    port: int

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return self.root + "/v1"

    def request_json(self, path: str, data: Any = None) -> Any:
        """Return the JSON at a path, after a POST request if there are data."""
        body = None if data is None else json.dumps(data).encode()
        with _DIRECT.open(urllib.request.Request(self.root + path, data=body), timeout=HANG_SECONDS) as response:
            return json.loads(response.read())

    def stats(self) -> dict[str, Any]:
        """Return the counts of requests by path, body and kind of answer, of concurrent requests and of connections."""
        stats: dict[str, Any] = self.request_json("/stats")
        return stats

    @property
    def requests(self) -> int:
        """The number of requests so far."""
        return int(self.stats()["requests"])

    def recorded_requests(self) -> list[dict[str, Any]]:
        """Return the first `record` requests: method, path, headers and body."""
        requests: list[dict[str, Any]] = self.request_json("/requests")
        return requests

    def change(self, **options: Any) -> None:
        """Change options of the running server."""
        self.request_json("/options", options)


AnyLoopback = TypeVar("AnyLoopback", bound=LoopbackServer)


@contextmanager
def run_loopback_server(client: type[AnyLoopback], name: str, **options: Any) -> Iterator[AnyLoopback]:
    """Run `tests.support.servers.NAME` with these options until the block ends; yield a client."""
    process = subprocess.Popen(
        [sys.executable, "-m", f"tests.support.servers.{name}", "--options", json.dumps(options)],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    )  # fmt: skip
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        port = process.stdout.readline().strip()
        if not port:
            raise RuntimeError(f"the {name} server did not start (exit code {process.wait()})")
        yield client(int(port))
    finally:
        process.kill()
        process.wait()
        process.stdin.close()
        process.stdout.close()
