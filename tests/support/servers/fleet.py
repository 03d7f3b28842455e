"""Several servers of one model. Each can be stopped and started again at the same port."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tests.support.servers.client import LoopbackServer, run_loopback_server


class ServerFleet:
    """The servers, with their statistics since the first start."""

    def __init__(self, count: int, server: str = "chat", **options: Any) -> None:
        self._server, self._options = server, {"prefix_block": 64, **options}
        self._stacks = [ExitStack() for _ in range(count)]
        self._running: list[LoopbackServer | None] = [None] * count
        self._ports = [0] * count
        self._stats_before_stop: list[list[dict[str, Any]]] = [[] for _ in range(count)]
        for number in range(count):
            self.start(number)
        self.base_urls = [f"http://127.0.0.1:{port}/v1" for port in self._ports]

    def start(self, number: int) -> None:
        """Start a server, at its former port if it had one."""
        server = self._stacks[number].enter_context(
            run_loopback_server(LoopbackServer, self._server, port=self._ports[number], **self._options)
        )
        self._running[number], self._ports[number] = server, server.port

    def stop(self, number: int) -> None:
        """Stop a server, which cuts its connections."""
        server = self._running[number]
        assert server is not None
        self._stats_before_stop[number].append(server.stats())
        self._running[number] = None
        self._stacks[number].close()

    def close(self) -> None:
        for stack in self._stacks:
            stack.close()

    def change(self, *numbers: int, **options: Any) -> None:
        """Change options of the running servers with these numbers, or of all running servers."""
        for server in filter(None, [self._running[number] for number in numbers or self._numbers]):
            server.change(**options)

    def _stats(self, number: int) -> list[dict[str, Any]]:
        server = self._running[number]
        return [*self._stats_before_stop[number], *([] if server is None else [server.stats()])]

    def requests(self) -> list[int]:
        """Return the number of calls to each server."""
        return [
            sum(stats["paths"].get("/v1/chat/completions", 0) for stats in self._stats(number))
            for number in self._numbers
        ]

    @property
    def _numbers(self) -> range:
        return range(len(self._running))

    def sessions(self) -> list[Counter[str]]:
        """Return the number of calls by session for each server."""
        return [
            sum((Counter(stats["prefixes"]["sessions"]) for stats in self._stats(number)), Counter())
            for number in self._numbers
        ]

    def affine_share(self) -> float:
        """Return the share of calls, without the first of each session, that went to the session's main server."""
        calls_by_session: dict[str, list[int]] = {}
        for sessions in self.sessions():
            for session, calls in sessions.items():
                calls_by_session.setdefault(session, []).append(calls)
        later = sum(sum(calls) - 1 for calls in calls_by_session.values())
        return sum(max(calls) - 1 for calls in calls_by_session.values()) / later if later else 1.0

    def warm_blocks(self) -> int:
        """Return the number of prompt blocks that were in the prefix cache of their server."""
        return sum(stats["prefixes"]["warm_blocks"] for number in self._numbers for stats in self._stats(number))

    def request_json(self, path: str) -> list[Any]:
        """Return the JSON at a path of each running server."""
        return [server.request_json(path) for server in filter(None, self._running)]

    def recorded_requests(self) -> list[dict[str, Any]]:
        """Return the recorded requests of the running servers."""
        return [request for server in filter(None, self._running) for request in server.recorded_requests()]


@contextmanager
def run_fleet(count: int, server: str = "chat", **options: Any) -> Iterator[ServerFleet]:
    """Run `count` servers of the module `tests.support.servers.SERVER` with these options."""
    fleet = ServerFleet(count, server, **options)
    try:
        yield fleet
    finally:
        fleet.close()
