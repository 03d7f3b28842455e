"""How messages travel: an interface, and pairs of sockets between processes of one machine.

What is sent in one turn of the loop goes out together, so that a batch costs about as much as a message would. What a
worker has to say is much: the socket says where it stands in memory that both have.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from runner.runs.workers.message_codec import packed, unpacked
from runner.runs.workers.shared_memory import Arena

AT_ONCE = 64
AT_ONCE_BYTES = 4 << 20
"""So many messages, or of so much, do not wait for the turn to end: the other side can begin on them."""

LEAST_SHARED = 4 << 10
"""Bytes that go through shared memory; fewer are sent as quickly."""

_HEADER = struct.Struct("<qq")
"""The length of a batch, and its place in shared memory."""

_FOLLOWS = -1
"""The place of a batch that is not there."""


def framed(data: bytes) -> tuple[bytes, bytes]:
    """A batch that is not in shared memory, as it goes through the socket."""
    return _HEADER.pack(len(data), _FOLLOWS), data


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

    def __init__(
        self, receive: Receive, ended: Callable[[], None], arenas: tuple[Arena | None, Arena | None] = (None, None)
    ) -> None:
        """`ended` is called once the other side is gone, or this one has let go of it; `arenas`: to send and to get."""
        self._receive, self._ended = receive, ended
        self._outgoing, self._incoming = arenas
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._out: list[Any] = []
        self._out_bytes = 0
        self._is_due = False
        self._in = bytearray()

    @classmethod
    async def over(
        cls,
        end: socket.socket,
        receive: Receive,
        ended: Callable[[], None],
        *,
        outgoing: Arena | None = None,
        incoming: Arena | None = None,
    ) -> SocketLink:
        """The link over this end of a pair of sockets, which it closes; each arena has its other end there."""
        end.setblocking(False)
        loop = asyncio.get_running_loop()
        _, link = await loop.create_connection(lambda: cls(receive, ended, (outgoing, incoming)), sock=end)
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
        while len(self._in) >= _HEADER.size:
            size, place = _HEADER.unpack_from(self._in)
            follows = place == _FOLLOWS
            end = _HEADER.size + (size if follows else 0)
            if len(self._in) < end:
                return
            if follows:
                with memoryview(self._in) as view:
                    messages = unpacked(view[_HEADER.size : end])
            else:
                assert self._incoming is not None
                with self._incoming.taken(place, size) as view:
                    messages = unpacked(view)
            del self._in[:end]
            self._receive(messages)

    def send(self, message: Any) -> None:
        self._out.append(message)
        self._out_bytes += getattr(message, "size", 0)
        if len(self._out) >= AT_ONCE or self._out_bytes >= AT_ONCE_BYTES:
            self._flush()
        elif not self._is_due:
            self._is_due = True
            self._loop.call_soon(self._flush_due)

    def _flush_due(self) -> None:
        self._is_due = False
        if self._out:
            self._flush()

    def _flush(self) -> None:
        out, self._out, self._out_bytes = self._out, [], 0
        if self._transport is not None and not self._transport.is_closing():
            data = packed(out)
            place = None if self._outgoing is None or len(data) < LEAST_SHARED else self._outgoing.put(data)
            if place is None:
                self._transport.writelines(framed(data))
            else:
                self._transport.write(_HEADER.pack(len(data), place))

    def close(self) -> None:
        if self._transport is not None:
            self._flush()
            self._transport.close()
