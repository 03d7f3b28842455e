"""How messages travel: an interface, and pairs of sockets between processes of one machine.

What is sent in one turn of the loop goes out together, so that a batch costs about as much as a message would.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from runner.runs.workers.packing import packed, unpacked

AT_ONCE = 16
"""So many messages do not wait for the turn to end: the other side can begin on them."""

_LENGTH = 8


class Link(Protocol):
    """One end of the way between the writer and one worker."""

    def send(self, message: Any) -> None:
        """Send a message, in order, and without waiting; to one who is gone it is dropped."""
        ...

    def close(self) -> None:
        """Let go of the other side, which sees that it is alone."""
        ...


Receive = Callable[[Sequence[Any]], None]
"""Takes the messages of a batch, in order."""


class SocketLink(asyncio.Protocol):
    """A link over a connected socket: frames of pickled lists, between processes that trust each other."""

    def __init__(self, receive: Receive, ended: Callable[[], None]) -> None:
        """`ended` is called once the other side is gone, or this one has let go of it."""
        self._receive, self._ended = receive, ended
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[Any] = []
        self._is_due = False
        self._in = bytearray()

    @classmethod
    async def over(cls, end: socket.socket, receive: Receive, ended: Callable[[], None]) -> SocketLink:
        """The link over this end of a pair of sockets, which it closes."""
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(receive, ended), sock=end)
        return link

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None
        self._out.clear()
        self._ended()

    def data_received(self, data: bytes) -> None:
        self._in += data
        while len(self._in) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._in[:_LENGTH], "little")
            if len(self._in) < end:
                return
            with memoryview(self._in) as view:
                messages = unpacked(view[_LENGTH:end])
            del self._in[:end]
            self._receive(messages)

    def send(self, message: Any) -> None:
        self._out.append(message)
        if len(self._out) >= AT_ONCE:
            self._flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._is_due = False
        if self._out:
            self._flush()

    def _flush(self) -> None:
        out, self._out = self._out, []
        if self._transport is not None and not self._transport.is_closing():
            data = packed(out)
            self._transport.writelines((len(data).to_bytes(_LENGTH, "little"), data))

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()
