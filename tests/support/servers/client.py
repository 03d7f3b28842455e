"""Starts a loopback server in a process of its own, asks it what it saw, and ends it."""

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
class Loopback:
    """A running server."""

    port: int

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return self.root + "/v1"

    def ask(self, path: str, data: Any = None) -> Any:
        """The JSON at a path, posted to where there are data."""
        body = None if data is None else json.dumps(data).encode()
        with _DIRECT.open(urllib.request.Request(self.root + path, data=body), timeout=HANG_SECONDS) as response:
            return json.loads(response.read())

    def stats(self) -> dict[str, Any]:
        """Requests, by path, by body and by kind of answer; how many at once; connections."""
        found: dict[str, Any] = self.ask("/stats")
        return found

    @property
    def requests(self) -> int:
        """How many requests came."""
        return int(self.stats()["requests"])

    def recorded(self) -> list[dict[str, Any]]:
        """The first `record` requests: method, path, headers, body."""
        found: list[dict[str, Any]] = self.ask("/requests")
        return found

    def change(self, **options: Any) -> None:
        """Change options while it runs."""
        self.ask("/options", options)


AnyLoopback = TypeVar("AnyLoopback", bound=Loopback)


@contextmanager
def running(client: type[AnyLoopback], name: str, **options: Any) -> Iterator[AnyLoopback]:
    """A client of `tests.support.servers.NAME`, started with these options, for as long as the block runs."""
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
