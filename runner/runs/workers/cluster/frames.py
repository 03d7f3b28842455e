"""Batches of messages as a stream of bytes, cut into pieces that Ray sends along with a call.

What is larger than `PIECE_BYTES` Ray would put into its object store, in shared memory and, where that is full, on the
disk of a node. Nothing of ours goes there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from runner.runs.workers.message_codec import packed, unpacked

PIECE_BYTES = 80 * 1024
"""What Ray sends along with a call is below 100 KiB, its own few bytes included (`max_direct_call_object_size`)."""

PIECES_AT_ONCE = 64
"""Of one call; all of them together stay below the 10 MiB that Ray sends along (`task_rpc_inlined_bytes_limit`)."""

_LENGTH = 8


class Outgoing:
    """Messages that wait to be sent: those that come meanwhile go together."""

    def __init__(self) -> None:
        self._waiting: list[Any] = []
        self._bytes = memoryview(b"")

    def add(self, message: Any) -> None:
        self._waiting.append(message)

    def __bool__(self) -> bool:
        return bool(self._waiting or self._bytes)

    def pieces(self, most: int) -> list[bytes]:
        """The next bytes of the stream, in at most so many pieces."""
        if self._waiting and not self._bytes:
            batch, self._waiting = self._waiting, []
            data = packed(batch)
            self._bytes = memoryview(len(data).to_bytes(_LENGTH, "little") + data)
        now, self._bytes = self._bytes[: most * PIECE_BYTES], self._bytes[most * PIECE_BYTES :]
        return [bytes(now[start : start + PIECE_BYTES]) for start in range(0, len(now), PIECE_BYTES)]


class FrameReader:
    """Puts a stream of bytes together again."""

    def __init__(self) -> None:
        self._bytes = bytearray()

    def batches(self, pieces: Sequence[bytes]) -> Iterator[Sequence[Any]]:
        """The batches of messages that are whole with these pieces."""
        for piece in pieces:
            self._bytes += piece
        while len(self._bytes) >= _LENGTH:
            end = _LENGTH + int.from_bytes(self._bytes[:_LENGTH], "little")
            if len(self._bytes) < end:
                return
            with memoryview(self._bytes) as view:
                batch = unpacked(view[_LENGTH:end])
            del self._bytes[:end]
            yield batch
