"""Bound the time that a registry's server may take in all, down to single bytes of a header.

A limit on each read alone does not bound a server that sends one byte now and then, or many answers that are all slow.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from runner.registry.transports.timeouts import Timeouts

T = TypeVar("T")

_PIECE = 1 << 14
"""Bytes that are sent in one step, so that a server that takes them one by one is noticed."""


class TransferRate:
    """The time that one server may still take: a fixed start, and more for each request and each byte.

    Only waiting counts, and not what this process does between two requests. Threads share one.
    """

    def __init__(
        self, patience: Timeouts, fault: Callable[[str], Exception], clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`fault` makes the exception to raise from a message."""
        self._patience, self._fault, self._clock = patience, fault, clock
        self._lock = threading.Lock()
        self._requests = self._bytes = 0
        self._waited = 0.0

    def begin_request(self, _request: object = None) -> None:
        with self._lock:
            self._requests += 1

    @property
    def seconds_left(self) -> float:
        allowed = self._patience.seconds_for(self._bytes) + self._requests * self._patience.request_seconds
        return allowed - self._waited

    def wait(self, step: Callable[[float], T], timeout: float | None, size: Callable[[T], int] = lambda _: 0) -> T:
        """Run a step that waits for the server, given its timeout in seconds; `size` says how many bytes it moved.

        Raises:
            Exception: what `fault` makes, if the server has used its time; or what the step raises.
        """
        left = self.seconds_left
        if left <= 0:
            raise self._too_slow()
        started, moved = self._clock(), 0
        try:
            result = step(left if timeout is None else min(timeout, left))
            moved = size(result)
        except Exception as error:
            self._count(started, 0)
            if self.seconds_left <= 0:
                raise self._too_slow() from error
            raise
        self._count(started, moved)
        return result

    def sleep(self, seconds: float) -> None:
        """Wait before another try. Raises as `wait`."""
        self.wait(lambda left: time.sleep(min(seconds, left)), None)

    def _count(self, started: float, moved: int) -> None:
        with self._lock:
            self._waited += self._clock() - started
            self._bytes += moved

    def _too_slow(self) -> Exception:
        return self._fault(
            f"the server is too slow: {self._bytes:,} bytes in {self._waited:,.0f} seconds; try again later"
        )


def set_pace(client: Any, pace: TransferRate) -> None:
    """Have all connections of an HTTP client keep to a pace."""
    client.event_hooks = {**client.event_hooks, "request": [*client.event_hooks["request"], pace.begin_request]}
    for transport in (client._transport, *client._mounts.values()):  # noqa: SLF001 - no public way to the connections
        if transport is not None:  # as for hosts that no proxy is used for
            pool = transport._pool  # noqa: SLF001
            pool._network_backend = _PacedBackend(pool._network_backend, pace)  # noqa: SLF001


class _PacedBackend:
    """A network backend of the HTTP client whose connections keep to a pace."""

    def __init__(self, backend: Any, pace: TransferRate) -> None:
        self._backend, self._pace = backend, pace

    def connect_tcp(self, host: str, port: int, timeout: float | None = None, **options: Any) -> _PacedStream:
        connect = partial(self._backend.connect_tcp, host, port, **options)
        return _PacedStream(self._pace.wait(lambda left: connect(timeout=left), timeout), self._pace)

    def sleep(self, seconds: float) -> None:
        self._backend.sleep(seconds)


class _PacedStream:
    """A connection that keeps to a pace."""

    def __init__(self, stream: Any, pace: TransferRate) -> None:
        self._stream, self._pace = stream, pace

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        def read(left: float) -> bytes:
            data: bytes = self._stream.read(max_bytes, left)
            return data

        return self._pace.wait(read, timeout, len)

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        def write(piece: bytes, left: float) -> int:
            self._stream.write(piece, left)
            return len(piece)

        for at in range(0, len(buffer), _PIECE):
            self._pace.wait(partial(write, buffer[at : at + _PIECE]), timeout, int)

    def start_tls(
        self, ssl_context: Any, server_hostname: str | None = None, timeout: float | None = None
    ) -> _PacedStream:
        start = partial(self._stream.start_tls, ssl_context, server_hostname)
        return _PacedStream(self._pace.wait(start, timeout), self._pace)

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)

    def close(self) -> None:
        self._stream.close()
