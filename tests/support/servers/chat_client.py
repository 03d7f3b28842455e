"""Starts the loopback server in a process of its own, asks it what it saw, and ends it."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.subprocess_server import server_process

_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


@dataclass(frozen=True)
class Loopback:
    """A running server."""

    port: int
    pid: int

    @property
    def root(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def base_url(self) -> str:
        return self.root + "/v1"

    def _get(self, path: str, data: bytes | None = None) -> Any:
        with _DIRECT.open(urllib.request.Request(self.root + path, data=data), timeout=10) as response:
            return json.loads(response.read())

    def stats(self) -> dict[str, Any]:
        """Requests, by path, by body and by kind of answer; most at once; connections."""
        found: dict[str, Any] = self._get("/stats")
        return found

    @property
    def requests(self) -> int:
        """How many requests came."""
        return int(self.stats()["requests"])

    def recorded(self) -> list[dict[str, Any]]:
        """The first `record` requests: method, path, headers, body."""
        found: list[dict[str, Any]] = self._get("/requests")
        return found

    def change(self, **options: Any) -> None:
        """Change options while it runs."""
        self._get("/options", json.dumps(options).encode())

    def cpu_seconds(self) -> float:
        """User and system time of its process so far."""
        ticks = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(ticks[11]) + int(ticks[12])) / 100


@contextmanager
def serving(**options: Any) -> Iterator[Loopback]:
    """A server with these options (see `tests.support.servers.chat.Options`) for as long as the block runs."""
    with server_process("tests.support.servers.chat", options) as (port, pid):
        yield Loopback(port, pid)
