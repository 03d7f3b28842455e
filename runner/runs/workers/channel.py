"""The channel between the writer and one worker: the interface, and its implementation by sockets on one machine.

The writer is the main process of a run with workers. `runner.runs.workers.cluster` has the implementation for Ray.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from runner.runs.workers.frames import FrameReader, Outbox

MAX_WAITING_MESSAGES = 64
"""If this many messages wait, they are sent immediately, instead of in the loop's next iteration."""

ReceiveBatch = Callable[[Sequence[Any]], None]
"""Takes a batch of messages, in order."""


class WorkerChannel(Protocol):
    """One end of a channel."""

    def send(self, message: Any) -> None:
        """Send a message without waiting. Messages arrive in order. After the channel has closed, they are dropped."""
        ...


class SocketChannel(asyncio.Protocol):
    """A channel over a connected socket. Messages that are sent in the same iteration of the loop share a frame."""

    def __init__(self, receive: ReceiveBatch, on_close: Callable[[], None]) -> None:
        self._receive, self._on_close = receive, on_close
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._outbox, self._reader = Outbox(), FrameReader()
        self._is_flush_scheduled = False

    @classmethod
    async def open(cls, sock: socket.socket, receive: ReceiveBatch, on_close: Callable[[], None]) -> SocketChannel:
        """Open a channel on a socket of a socket pair. Closing the channel closes the socket.

        `on_close` is called once, after either side has closed the channel.
        """
        sock.setblocking(False)
        _, channel = await asyncio.get_running_loop().create_connection(lambda: cls(receive, on_close), sock=sock)
        return channel

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._on_close()

    def data_received(self, data: bytes) -> None:
        for batch in self._reader.feed(data):
            self._receive(batch)

    def send(self, message: Any) -> None:
        self._outbox.add(message)
        if len(self._outbox) >= MAX_WAITING_MESSAGES:
            self._flush()
        elif not self._is_flush_scheduled:
            self._is_flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_scheduled = False
        data = self._outbox.take()
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        """Send the remaining messages, then close the channel."""
        if self._transport is not None:
            self._flush()
            self._transport.close()
