"""Several servers of one model, of which any may go away and come back at its old place."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.support.servers.client import Loopback, running


class Fleet:
    """The servers, and what each has seen over all its lives."""

    def __init__(self, count: int, server: str = "chat", **options: Any) -> None:
        self._server, self._options = server, {"prefix_block": 64, **options}
        self._lives = [ExitStack() for _ in range(count)]
        self._up: list[Loopback | None] = [None] * count
        self._ports = [0] * count
        self._before: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        for at in range(count):
            self.start(at)
        self.base_urls = [f"http://127.0.0.1:{port}/v1" for port in self._ports]

    def start(self, at: int) -> None:
        """Start one, at its old place where it had one."""
        server = self._lives[at].enter_context(running(Loopback, self._server, port=self._ports[at], **self._options))
        self._up[at], self._ports[at] = server, server.port

    def stop(self, at: int) -> None:
        """End one: its connections are cut, and nobody listens at its place."""
        server = self._up[at]
        assert server is not None
        self._before[at].append(server.stats())
        self._up[at] = None
        self._lives[at].close()

    def close(self) -> None:
        for life in self._lives:
            life.close()

    def change(self, *places: int, **options: Any) -> None:
        """Change options of those that are up, at these places or all."""
        for server in filter(None, [self._up[at] for at in places or self._places]):
            server.change(**options)

    def _stats(self, at: int) -> list[dict[str, Any]]:
        server = self._up[at]
        return [*self._before[at], *([] if server is None else [server.stats()])]

    def requests(self) -> list[int]:
        """How many calls each has had."""
        return [sum(one["paths"].get("/v1/chat/completions", 0) for one in self._stats(at)) for at in self._places]

    @property
    def _places(self) -> range:
        return range(len(self._up))

    def sessions(self) -> list[Counter[str]]:
        """For each server how many calls each session had there."""
        return [
            sum((Counter(one["prefixes"]["sessions"]) for one in self._stats(at)), Counter()) for at in self._places
        ]

    def stuck(self) -> float:
        """The share of calls, but for the first of each session, that were at the server of most of its calls."""
        found: dict[str, list[int]] = {}
        for sessions in self.sessions():
            for session, calls in sessions.items():
                found.setdefault(session, []).append(calls)
        later = sum(sum(calls) - 1 for calls in found.values())
        return sum(max(calls) - 1 for calls in found.values()) / later if later else 1.0

    def warm_blocks(self) -> int:
        """How many blocks of prompts were in the prefix cache of their server."""
        return sum(one["prefixes"]["warm_blocks"] for at in self._places for one in self._stats(at))

    def ask(self, path: str) -> list[Any]:
        """What those that are up answer to a question of the test's."""
        return [server.ask(path) for server in filter(None, self._up)]

    def recorded(self) -> list[dict[str, Any]]:
        """The first requests to those that are up."""
        return [request for server in filter(None, self._up) for request in server.recorded()]


@contextmanager
def fleet(count: int, server: str = "chat", **options: Any) -> Iterator[Fleet]:
    """So many of `tests.support.servers.SERVER` with these options for as long as the block runs."""
    made = Fleet(count, server, **options)
    try:
        yield made
    finally:
        made.close()
