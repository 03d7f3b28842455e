"""Limit the total time that a server may take to answer. `HttpClient` applies this to all of its connections.

A timeout for each read is not enough: a server could send a byte shortly before each timeout, or many slow answers.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from runner.registry.transports.timeouts import Timeouts

T = TypeVar("T")

_STEP_BYTES = 1 << 14
"""Number of bytes to send in one step. It is small, so that a slow receiver is noticed soon."""


class TimeBudget:
    """The time that one server may still take: a fixed time, and additional time for each request and each byte.

    Only the time spent waiting for the server counts. All threads that use a client share its `TimeBudget`.
    """

    def __init__(
        self, timeouts: Timeouts, error: Callable[[str], Exception], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """Start with the full time. `error` creates the exception to raise if no time is left, from a message."""
        self._timeouts, self._error, self._clock = timeouts, error, clock
        self._lock = threading.Lock()
        self._requests = self._bytes = 0
        self._waited = 0.0

    def begin_request(self, _request: object = None) -> None:
        with self._lock:
            self._requests += 1

    @property
    def seconds_left(self) -> float:
        allowed = self._timeouts.seconds_for(self._bytes) + self._requests * self._timeouts.request_seconds
        return allowed - self._waited

    def run_step(self, step: Callable[[float], T], timeout: float | None, size: Callable[[T], int] = lambda _: 0) -> T:
        """Call `step`, and count its time and bytes.

        `step` gets its timeout in seconds: the smaller of `timeout` and the time that is left. `size` gets the result
        of `step`, and returns the number of transferred bytes.

        Raises:
            Exception: `error`, if the server has used its time; if it has not, any exception of `step`.
        """
        left = self.seconds_left
        if left <= 0:
            raise self._too_slow_error()
        start_time, byte_count = self._clock(), 0
        try:
            result = step(left if timeout is None else min(timeout, left))
            byte_count = size(result)
        except Exception as error:
            self._count(start_time, 0)
            if self.seconds_left <= 0:
                raise self._too_slow_error() from error
            raise
        self._count(start_time, byte_count)
        return result

    def sleep(self, seconds: float) -> None:
        """Sleep before another attempt. The sleep counts as time of the server. Raises as `run_step`."""
        self.run_step(lambda left: time.sleep(min(seconds, left)), None)

    def _count(self, start_time: float, byte_count: int) -> None:
        with self._lock:
            self._waited += self._clock() - start_time
            self._bytes += byte_count

    def _too_slow_error(self) -> Exception:
        return self._error(
            f"the server is too slow: {self._bytes:,} bytes in {self._waited:,.0f} seconds; try again later"
        )


def apply_time_budget(client: Any, budget: TimeBudget) -> None:
    """Apply a time budget to all connections of an `httpx2.Client`."""
    client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], budget.begin_request]}
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001 - httpx2 has no public access
        if transport is not None:  # None stands for hosts that are reached without a proxy
            pool = transport._pool  # noqa: SLF001
            pool._network_backend = _LimitedBackend(pool._network_backend, budget)  # noqa: SLF001


class _LimitedBackend:
    """The HTTP client's network backend, which counts the time of its connections."""

    def __init__(self, backend: Any, budget: TimeBudget) -> None:
        self._backend, self._budget = backend, budget

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> _LimitedStream:
        connect = partial(self._backend.connect_tcp, host, port, **options)
        return _LimitedStream(self._budget.run_step(lambda left: connect(timeout=left), timeout), self._budget)


class _LimitedStream:
    """A connection whose time is counted."""

    def __init__(self, stream: Any, budget: TimeBudget) -> None:
        self._stream, self._budget = stream, budget

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        read: Callable[[float], bytes] = partial(self._stream.read, max_bytes)
        return self._budget.run_step(read, timeout, len)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        def write(piece: bytes, left: float) -> int:
            self._stream.write(piece, left)
            return len(piece)

        for start in range(0, len(buffer), _STEP_BYTES):
            self._budget.run_step(partial(write, buffer[start : start + _STEP_BYTES]), timeout, int)

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> _LimitedStream:
        start = partial(self._stream.start_tls, ssl_context, server_hostname)
        return _LimitedStream(self._budget.run_step(start, timeout), self._budget)
