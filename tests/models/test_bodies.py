"""Bodies in pieces against their limits: what is unpacked, what is dropped, and who waits for whom."""

from __future__ import annotations

import asyncio
import gzip
import io
import zlib
from collections.abc import AsyncIterator, Callable

import pytest

from runner.models.providers.bodies import (
    FREE_BYTES,
    PLACES,
    STEP,
    BodyError,
    Places,
    TooLongError,
    Unpacker,
    read_body,
    read_start,
    read_to,
    unpacker_for,
)

TEXT = b'{"answer": "yes"}' * 50


async def pieces(data: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def read(data: bytes, encoding: str = "", limit: int = 1 << 20, size: int = 7) -> bytes:
    return asyncio.run(read_body(pieces(data, size), encoding, limit, Places()))


def raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 16])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("", bytes), ("identity", bytes), ("gzip", gzip.compress), (" GZip ", gzip.compress),
        ("x-gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
        ("deflate", zlib.compress), ("deflate", raw_deflate),
    ],
)  # fmt: skip
def test_a_body_is_unpacked_whatever_its_pieces(encoding: str, pack: Callable[[bytes], bytes], size: int) -> None:
    assert read(pack(TEXT), encoding, size=size) == TEXT


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: b"no" + data, lambda data: data[:20] * 2])
def test_a_damaged_body_is_refused(encoding: str, damage: Callable[[bytes], bytes]) -> None:
    pack = gzip.compress if encoding == "gzip" else zlib.compress
    with pytest.raises(BodyError):
        read(damage(pack(TEXT)), encoding)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "gzip,deflate", "rot13", "\xff"])
def test_a_packing_that_nobody_asked_for_is_refused(encoding: str) -> None:
    with pytest.raises(BodyError, match="nobody asked for"):
        unpacker_for(encoding)


@pytest.mark.parametrize(("encoding", "pack"), [("", bytes), ("gzip", gzip.compress), ("deflate", zlib.compress)])
def test_a_body_of_the_limit_is_taken_and_one_byte_more_is_not(encoding: str, pack: Callable[[bytes], bytes]) -> None:
    assert len(read(pack(bytes(1000)), encoding, limit=1000)) == 1000
    with pytest.raises(TooLongError):
        read(pack(bytes(1001)), encoding, limit=1000)


def test_no_step_of_unpacking_is_larger_than_a_step() -> None:
    unpacker = unpacker_for("gzip")
    assert isinstance(unpacker, Unpacker)
    sizes = [len(part) for part in unpacker.parts(gzip.compress(bytes(8 * STEP)))]
    assert sum(sizes) == 8 * STEP
    assert max(sizes) <= STEP


def test_of_an_error_the_start_is_kept() -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000

    assert len(asyncio.run(read_start(endless(), "", 2500))) == 2500
    assert asyncio.run(read_start(pieces(gzip.compress(TEXT)), "gzip", 100)) == TEXT[:100]
    assert asyncio.run(read_start(pieces(b"plain"), "gzip", 100)) == b""
    assert asyncio.run(read_start(pieces(b"plain"), "br", 100)) == b"plain"


def test_a_file_goes_to_its_sink_up_to_its_limit() -> None:
    sink = io.BytesIO()
    asyncio.run(read_to(pieces(gzip.compress(TEXT)), "gzip", len(TEXT), sink))
    assert sink.getvalue() == TEXT
    with pytest.raises(TooLongError):
        asyncio.run(read_to(pieces(TEXT), "", len(TEXT) - 1, io.BytesIO()))


# Places


def test_long_bodies_share_a_few_places_and_short_ones_need_none() -> None:
    async def play() -> tuple[int, int]:
        places, go_on = Places(), asyncio.Event()
        held = most = 0

        async def long_body() -> AsyncIterator[bytes]:
            nonlocal held, most
            yield bytes(FREE_BYTES)
            yield b"more"
            held += 1
            most = max(most, held)
            await go_on.wait()
            held -= 1

        async def ask() -> bytes:
            return await read_body(long_body(), "", 1 << 20, places)

        asked = [asyncio.create_task(ask()) for _ in range(3 * PLACES)]
        for _ in range(20):
            await asyncio.sleep(0)
        waiting = held
        assert await read_body(pieces(bytes(1000)), "", 1 << 20, places) == bytes(1000)
        go_on.set()
        assert {len(body) for body in await asyncio.gather(*asked)} == {FREE_BYTES + 4}
        return waiting, most

    assert asyncio.run(play()) == (PLACES, PLACES)


def test_a_place_is_free_again_after_a_failure_and_a_time_out() -> None:
    async def play() -> None:
        places = Places()

        async def silent() -> AsyncIterator[bytes]:
            yield bytes(FREE_BYTES + 1)
            await asyncio.Event().wait()

        for _ in range(PLACES + 1):
            with pytest.raises(TooLongError):
                await read_body(pieces(bytes(FREE_BYTES + 9), 1 << 16), "", FREE_BYTES + 5, places)
        for _ in range(PLACES + 1):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await read_body(silent(), "", 1 << 30, places)
        async with asyncio.timeout(5):
            assert len(await read_body(pieces(bytes(FREE_BYTES * 2), 1 << 16), "", 1 << 20, places)) == FREE_BYTES * 2

    asyncio.run(play())
