"""The body of an answer in pieces, against its limit, so that no server decides how much memory a run takes.

A body is counted unpacked. All connections to a server together take little: what a body has beyond its free bytes
needs one of the server's few places, held until the body has been parsed. Who holds one waits for that server alone, so
that nobody waits for ever, and no server for another's.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterable, Iterator
from contextlib import contextmanager
from typing import Protocol

from runner.base.redaction import redacted

FREE_BYTES = 256 << 10
"""What a body may have without a place: nearly all answers are smaller."""
LEAST_FREE_BYTES = 16 << 10
ALL_FREE_BYTES = 32 << 20
"""What all bodies of a run may have without a place, unless they are so many that each has the least."""
PLACES = 2
STEP = 256 << 10
"""The most that is unpacked at once."""


class BodyError(Exception):
    """A body that cannot be taken: too long, or not unpacked."""


class TooLongError(BodyError):
    """A body that is longer than its limit."""


class BodySlots:
    """The places for the long bodies of one server, of which at most `bodies` come at once."""

    def __init__(self, bodies: int = 1) -> None:
        self._places = asyncio.Semaphore(PLACES)
        self.free_bytes = max(LEAST_FREE_BYTES, min(FREE_BYTES, ALL_FREE_BYTES // bodies))

    @contextmanager
    def one(self) -> Iterator[OnePlace]:
        """A place that may be taken, and is given back in the end."""
        place = OnePlace(self._places, self.free_bytes)
        try:
            yield place
        finally:
            place.give_back()


class OnePlace:
    """The place of one body, where it needs one."""

    def __init__(self, places: asyncio.Semaphore, free_bytes: int) -> None:
        self._places, self._taken = places, False
        self.free_bytes = free_bytes

    @property
    def is_taken(self) -> bool:
        return self._taken

    async def take(self) -> None:
        """Wait for a place; it is the caller's time-out that ends the wait."""
        if not self._taken:
            await self._places.acquire()
            self._taken = True

    def give_back(self) -> None:
        if self._taken:
            self._taken = False
            self._places.release()


class Sink(Protocol):
    """Where a body goes that may be longer than memory."""

    def write(self, data: bytes, /) -> object: ...


async def read_body(pieces: AsyncIterable[bytes], encoding: str, limit: int, place: OnePlace) -> bytes:
    """A body of at most `limit` bytes, unpacked; the place that it took is given back by whoever asked for it.

    Raises:
        TooLongError: there is more; what has come is dropped.
        BodyError: it is packed in a way that nobody asked for, or not whole.
    """
    unpacker = unpacker_for(encoding)
    body = bytearray()
    try:
        async for piece in pieces:
            for part in (piece,) if unpacker is None else unpacker.parts(piece):
                size = len(body) + len(part)
                if size > limit:
                    raise TooLongError(f"more than {limit} bytes")
                if size > place.free_bytes:
                    await place.take()
                body += part
        if unpacker is not None:
            unpacker.check_whole()
        return bytes(body)
    finally:
        body.clear()  # an error's traceback would hold it for as long as somebody holds the error


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
            raise BodyError(f"it is compressed as {redacted(encoding)[:40]!r}, which was not asked for")
