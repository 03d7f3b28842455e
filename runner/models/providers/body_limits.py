"""Reads response bodies in pieces, up to a limit, so that a server cannot make a run use any amount of memory.

The limit applies to the decompressed body. The memory for all connections to a server is limited, too: a body larger
than `free_bytes` needs one of the server's few slots, and keeps it until the body is parsed. A call that has a slot
waits only for data from its own server. So every wait for a slot ends, and no server has to wait for another one.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, Callable, Iterator
from typing import Self

from runner.base.redaction import redacted

FREE_BYTES = 256 << 10
"""Maximum size of a body without a slot. Nearly all answers are smaller."""
MIN_FREE_BYTES = 16 << 10
"""Minimum value of `free_bytes` for servers with many concurrent calls."""
ALL_FREE_BYTES = 32 << 20
"""Maximum total size of a server's bodies without a slot, unless each has the minimum."""
SLOTS = 2
"""Number of slots of a server."""
STEP = 256 << 10
"""Maximum number of bytes to decompress at once."""
_GZIP = zlib.MAX_WBITS | 16
"""The value of `wbits` that makes zlib read gzip."""


class BodyError(Exception):
    """Raised if a body is too long or cannot be decompressed. The message follows the words "the answer"."""


class TooLongError(BodyError):
    """Raised if a body is longer than its limit."""


class BodySlots:
    """The slots for the long bodies of one server, which sends at most `bodies` bodies at the same time."""

    def __init__(self, bodies: int = 1) -> None:
        self._semaphore = asyncio.Semaphore(SLOTS)
        self.free_bytes = max(MIN_FREE_BYTES, min(FREE_BYTES, ALL_FREE_BYTES // bodies))

    def slot(self) -> BodySlot:
        """Return a slot for one body, to be used in a `with` statement."""
        return BodySlot(self._semaphore, self.free_bytes)


class BodySlot:
    """The slot of one body. It is acquired only if the body is long, and released at the end of the `with` block."""

    def __init__(self, semaphore: asyncio.Semaphore, free_bytes: int) -> None:
        self._semaphore = semaphore
        self.free_bytes = free_bytes
        self.is_acquired = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.is_acquired:
            self.is_acquired = False
            self._semaphore.release()

    async def acquire(self) -> None:
        """Wait for the slot. Only the caller's time-out limits the wait."""
        if not self.is_acquired:
            await self._semaphore.acquire()
            self.is_acquired = True


async def read_body(pieces: AsyncIterable[bytes], encoding: str, limit: int, slot: BodySlot) -> bytes:
    """Read, decompress and return a body of at most `limit` bytes. The caller releases the slot.

    Raises:
        TooLongError: the body is longer.
        BodyError: the body has another compression than gzip, or is damaged or incomplete.
    """
    unpacker = unpacker_for(encoding)
    body = bytearray()
    try:
        async for piece in pieces:
            for part in (piece,) if unpacker is None else unpacker.parts(piece):
                size = len(body) + len(part)
                if size > limit:
                    raise TooLongError(f"has more than {limit} bytes")
                if size > slot.free_bytes:
                    await slot.acquire()
                body += part
        if unpacker is not None:
            unpacker.check_whole()
        return bytes(body)
    finally:
        body.clear()  # otherwise the traceback of an error would keep the body in memory


async def read_start(pieces: AsyncIterable[bytes], encoding: str, limit: int) -> bytes:
    """Return the first `limit` bytes of a body, decompressed as far as possible. This is enough for an error."""
    try:
        unpacker = unpacker_for(encoding)
    except BodyError:
        unpacker = None
    body = bytearray()
    async for piece in pieces:
        try:
            for part in (piece,) if unpacker is None else unpacker.parts(piece):
                body += part
                if len(body) >= limit:
                    return bytes(body[:limit])
        except BodyError:
            return bytes(body)
    return bytes(body)


async def read_to_file(
    pieces: AsyncIterable[bytes], encoding: str, limit: int, write: Callable[[bytes], object]
) -> None:
    """Read and decompress a body that may be larger than memory, and pass each part to `write`.

    Raises:
        TooLongError, BodyError: see `read_body`.
    """
    unpacker = unpacker_for(encoding)
    size = 0
    async for piece in pieces:
        for part in (piece,) if unpacker is None else unpacker.parts(piece):
            size += len(part)
            if size > limit:
                raise TooLongError(f"has more than {limit} bytes")
            write(part)
    if unpacker is not None:
        unpacker.check_whole()


class Unpacker:
    """Decompresses gzip in steps of limited size."""

    def __init__(self) -> None:
        self._zlib = zlib.decompressobj(_GZIP)
        self._has_data = False

    def parts(self, data: bytes) -> Iterator[bytes]:
        """Yield the decompressed form of the next bytes.

        Raises:
            BodyError: the bytes are damaged.
        """
        while data:
            self._has_data = True
            if self._zlib.eof:  # a body may consist of several compressed members
                self._zlib = zlib.decompressobj(_GZIP)
            try:
                part = self._zlib.decompress(data, STEP)
            except zlib.error as error:
                raise BodyError(f"cannot be decompressed ({error})") from None
            data = self._zlib.unconsumed_tail or self._zlib.unused_data
            yield part

    def check_whole(self) -> None:
        """Check that the body is complete.

        Raises:
            BodyError: the body is truncated.
        """
        if self._has_data and not self._zlib.eof:
            raise BodyError("cannot be decompressed (the data is truncated)")


def unpacker_for(encoding: str) -> Unpacker | None:
    """Return the unpacker for a `content-encoding`; None if the body is not compressed.

    Raises:
        BodyError: the encoding is not gzip. (Every request asks for an uncompressed body.)
    """
    match encoding.strip().lower():
        case "" | "identity" | "none":
            return None
        case "gzip" | "x-gzip":
            return Unpacker()
        case _:
            raise BodyError(
                f"is compressed as {redacted(encoding)[:40]!r} although the request accepts only uncompressed answers; "
                "turn off compression at the server or its proxy"
            )
