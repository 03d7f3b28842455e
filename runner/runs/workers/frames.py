"""Encodes batches of messages as frames in a stream of bytes, for local sockets and for calls to Ray actors.

A frame is the length of a batch, followed by the pickled messages.
"""

from __future__ import annotations

import pickle
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_LENGTH = struct.Struct("<Q")
"""The format of a frame's prefix, which is the number of bytes that follow."""


class Outbox:
    """The messages to send. A frame contains all messages that were added since the previous frame."""

    def __init__(self) -> None:
        self._messages: list[Any] = []
        self._bytes = memoryview(b"")

    def add(self, message: Any) -> None:
        self._messages.append(message)

    def __len__(self) -> int:
        """Return the number of messages that were added after the last frame was started."""
        return len(self._messages)

    def __bool__(self) -> bool:
        return bool(self._messages or self._bytes)

    def take(self, limit: int | None = None) -> memoryview:
        """Return and remove the next bytes of the stream, at most `limit`."""
        if not self._bytes and self._messages:
            messages, self._messages = self._messages, []
            batch = pickle.dumps(messages, pickle.HIGHEST_PROTOCOL)
            self._bytes = memoryview(_LENGTH.pack(len(batch)) + batch)
        end = len(self._bytes) if limit is None else limit
        data, self._bytes = self._bytes[:end], self._bytes[end:]
        return data


class FrameReader:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def feed(self, data: bytes) -> Iterator[Sequence[Any]]:
        """Add bytes of the stream, and yield each batch of messages that is now complete."""
        self._bytes += data
        while len(self._bytes) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._bytes)[0]
            if len(self._bytes) < end:
                return
            with memoryview(self._bytes) as view:
                batch = pickle.loads(view[_LENGTH.size : end])  # noqa: S301 - from a process of this run
            del self._bytes[:end]
            yield batch


class PickledMessage:
    """A message for several workers that is pickled only once."""

    def __init__(self, message: Any) -> None:
        self._data = pickle.dumps(message, pickle.HIGHEST_PROTOCOL)

    def __reduce__(self) -> tuple[Callable[[bytes], Any], tuple[bytes]]:
        return pickle.loads, (self._data,)
