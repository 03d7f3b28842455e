"""The body of an answer in pieces, against its limit, so that no server decides how much memory a run takes.

A body is counted unpacked. All connections of a run together take little: what a body has beyond `FREE_BYTES` needs
one of a few places, and who holds one waits for its own server alone, so that nobody waits for ever.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, Iterator
from typing import Protocol

from runner.redaction import redacted

FREE_BYTES = 256 << 10
"""What every body may have without a place: nearly all answers are smaller."""
PLACES = 4
STEP = 256 << 10
"""The most that is unpacked at once."""


class BodyError(Exception):
    """A body that cannot be taken: too long, or not unpacked."""


class TooLongError(BodyError):
    """A body that is longer than its limit."""


class Places:
    """The places of one run for long bodies."""

    def __init__(self) -> None:
        self._places = asyncio.Semaphore(PLACES)

    async def take(self) -> None:
        """Wait for a place; it is the caller's time-out that ends the wait."""
        await self._places.acquire()

    def give_back(self) -> None:
        self._places.release()


class Sink(Protocol):
    """Where a body goes that may be longer than memory."""

    def write(self, data: bytes, /) -> object: ...


async def read_body(pieces: AsyncIterable[bytes], encoding: str, limit: int, places: Places) -> bytes:
    """A body of at most `limit` bytes, unpacked.

    Raises:
        TooLongError: there is more; what has come is dropped.
        BodyError: it is packed in a way that nobody asked for, or not whole.
    """
    unpacker = unpacker_for(encoding)
    body = bytearray()
    placed = False
    try:
        async for piece in pieces:
            for part in (piece,) if unpacker is None else unpacker.parts(piece):
                size = len(body) + len(part)
                if size > limit:
                    raise TooLongError(f"more than {limit} bytes")
                if size > FREE_BYTES and not placed:
                    await places.take()
                    placed = True
                body += part
        if unpacker is not None:
            unpacker.check_whole()
        return bytes(body)
    finally:
        body.clear()  # an error's traceback would hold it for as long as somebody holds the error
        if placed:
            places.give_back()


async def read_start(pieces: AsyncIterable[bytes], encoding: str, limit: int) -> bytes:
    """The first bytes of a body, unpacked as far as that goes: all that is worth keeping of an error."""
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


async def read_to(pieces: AsyncIterable[bytes], encoding: str, limit: int, sink: Sink) -> None:
    """A body into a file.

    Raises:
        TooLongError, BodyError: as of `read_body`.
    """
    unpacker = unpacker_for(encoding)
    size = 0
    async for piece in pieces:
        for part in (piece,) if unpacker is None else unpacker.parts(piece):
            size += len(part)
            if size > limit:
                raise TooLongError(f"more than {limit} bytes")
            sink.write(part)
    if unpacker is not None:
        unpacker.check_whole()


class Unpacker:
    """Gzip or deflate, in steps of a bounded size."""

    def __init__(self, bits: int) -> None:
        self._bits = bits
        self._zlib = zlib.decompressobj(bits)
        self._head = b""
        self._begun = False

    def parts(self, data: bytes) -> Iterator[bytes]:
        """What these bytes unpack to.

        Raises:
            BodyError: they are damaged.
        """
        if not self._begun:
            data = self._head = self._head + data
            if len(data) < 2:
                return
            self._begun = True
            if self._bits == zlib.MAX_WBITS and (data[0] & 15 != 8 or (data[0] << 8 | data[1]) % 31):
                self._zlib = zlib.decompressobj(-zlib.MAX_WBITS)  # deflate without a head, as some servers mean it
        while data:
            if self._zlib.eof:  # gzip may be several members in a row
                self._zlib = zlib.decompressobj(self._bits)
            try:
                part = self._zlib.decompress(data, STEP)
            except zlib.error as error:
                raise BodyError(f"it cannot be unpacked ({error})") from None
            data = self._zlib.unconsumed_tail or self._zlib.unused_data
            yield part

    def check_whole(self) -> None:
        """See that the end has come.

        Raises:
            BodyError: it has not.
        """
        if self._head and not self._zlib.eof:
            raise BodyError("it cannot be unpacked (it is cut off)")


def unpacker_for(encoding: str) -> Unpacker | None:
    """The unpacker of a `content-encoding`; None where nothing is packed.

    Raises:
        BodyError: there is none; every request asks for `identity`.
    """
    match encoding.strip().lower():
        case "" | "identity" | "none":
            return None
        case "gzip" | "x-gzip":
            return Unpacker(zlib.MAX_WBITS | 16)
        case "deflate":
            return Unpacker(zlib.MAX_WBITS)
        case _:
            raise BodyError(f"it is packed as {redacted(encoding)[:40]!r}, which nobody asked for")
