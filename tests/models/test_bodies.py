"""Reading response bodies: decompression, size limits and slots for long bodies."""

from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress

import pytest

from runner.base.async_runner import cancel_all
from runner.models.client import ModelConnector
from runner.models.interface import Completion, Request
from runner.models.providers.body_limits import (
    FREE_BYTES,
    SLOTS,
    STEP,
    BodyError,
    BodySlot,
    BodySlots,
    TooLongError,
    Unpacker,
    read_body,
    read_start,
    read_to_file,
    unpacker_for,
)
from runner.models.providers.openai import OpenAiModel
from runner.models.retry_policy import Retry
from tests.support.hang_guard import HANG_SECONDS
from tests.support.openai_calls import CHAT, SAMPLE, model_settings
from tests.support.servers.in_loop import run_in_event_loop

TEXT = b'{"answer": "yes"}' * 50


async def iter_pieces(data: bytes, size: int = 7) -> AsyncIterator[bytes]:
    for start in range(0, len(data), size):
        yield data[start : start + size]


def read_all(data: bytes, encoding: str = "", limit: int = 1 << 20, size: int = 7) -> bytes:
    async def read() -> bytes:
        with BodySlots().slot() as slot:
            return await read_body(iter_pieces(data, size), encoding, limit, slot)

    return asyncio.run(read())


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 16])
@pytest.mark.parametrize(
    ("encoding", "pack"),
    [
        ("", bytes), ("identity", bytes), ("gzip", gzip.compress), (" GZip ", gzip.compress),
        ("x-gzip", lambda data: gzip.compress(data[:9]) + gzip.compress(data[9:])),
    ],
)  # fmt: skip
def test_body_is_decompressed_from_pieces_of_any_size(encoding: str, pack: Callable[[bytes], bytes], size: int) -> None:
    assert read_all(pack(TEXT), encoding, size=size) == TEXT


@pytest.mark.parametrize("damage", [lambda data: data[:-3], lambda data: b"no" + data, lambda data: data[:20] * 2])
def test_damaged_body_is_rejected(damage: Callable[[bytes], bytes]) -> None:
    with pytest.raises(BodyError):
        read_all(damage(gzip.compress(TEXT)), "gzip")


@pytest.mark.parametrize("encoding", ["br", "zstd", "deflate", "gzip, gzip", "gzip,deflate", "rot13", "\xff"])
def test_unrequested_content_encoding_is_rejected(encoding: str) -> None:
    with pytest.raises(BodyError, match="accepts only uncompressed answers"):
        unpacker_for(encoding)


@pytest.mark.parametrize(("encoding", "pack"), [("", bytes), ("gzip", gzip.compress)])
def test_body_at_the_limit_is_accepted_and_one_byte_more_is_rejected(
    encoding: str, pack: Callable[[bytes], bytes]
) -> None:
    assert len(read_all(pack(bytes(1000)), encoding, limit=1000)) == 1000
    with pytest.raises(TooLongError):
        read_all(pack(bytes(1001)), encoding, limit=1000)


def test_decompression_yields_parts_of_at_most_one_step() -> None:
    unpacker = unpacker_for("gzip")
    assert isinstance(unpacker, Unpacker)
    sizes = [len(part) for part in unpacker.parts(gzip.compress(bytes(8 * STEP)))]
    assert sum(sizes) == 8 * STEP
    assert max(sizes) <= STEP


def test_only_the_start_of_an_error_body_is_read() -> None:
    async def iter_endless() -> AsyncIterator[bytes]:
        while True:
            yield b"x" * 1000

    assert len(asyncio.run(read_start(iter_endless(), "", 2500))) == 2500
    assert asyncio.run(read_start(iter_pieces(gzip.compress(TEXT)), "gzip", 100)) == TEXT[:100]
    assert asyncio.run(read_start(iter_pieces(b"plain"), "gzip", 100)) == b""
    assert asyncio.run(read_start(iter_pieces(b"plain"), "br", 100)) == b"plain"


def test_file_is_written_to_the_sink_up_to_its_limit() -> None:
    sink = io.BytesIO()
    asyncio.run(read_to_file(iter_pieces(gzip.compress(TEXT)), "gzip", len(TEXT), sink.write))
    assert sink.getvalue() == TEXT
    with pytest.raises(TooLongError):
        asyncio.run(read_to_file(iter_pieces(TEXT), "", len(TEXT) - 1, io.BytesIO().write))


# Slots


def test_long_bodies_share_a_few_slots_and_short_ones_need_none() -> None:
    async def read_bodies() -> tuple[int, int]:
        slots, release_bodies = BodySlots(), asyncio.Event()
        open_bodies = max_open = 0

        async def iter_long_body() -> AsyncIterator[bytes]:
            nonlocal open_bodies, max_open
            yield bytes(FREE_BYTES)
            yield b"more"
            open_bodies += 1
            max_open = max(max_open, open_bodies)
            await release_bodies.wait()
            open_bodies -= 1

        async def read_long_body() -> bytes:
            with slots.slot() as slot:
                return await read_body(iter_long_body(), "", 1 << 20, slot)

        tasks = [asyncio.create_task(read_long_body()) for _ in range(3 * SLOTS)]
        for _ in range(20):
            await asyncio.sleep(0)
        open_before_release = open_bodies
        with slots.slot() as slot:
            assert await read_body(iter_pieces(bytes(1000)), "", 1 << 20, slot) == bytes(1000)
        release_bodies.set()
        assert {len(body) for body in await asyncio.gather(*tasks)} == {FREE_BYTES + 4}
        return open_before_release, max_open

    assert asyncio.run(read_bodies()) == (SLOTS, SLOTS)


def test_slot_is_released_after_failures_and_timeouts() -> None:
    async def fail_and_read() -> None:
        slots = BodySlots()

        async def iter_silent() -> AsyncIterator[bytes]:
            yield bytes(FREE_BYTES + 1)
            await asyncio.Event().wait()

        for _ in range(SLOTS + 1):
            with pytest.raises(TooLongError), slots.slot() as slot:
                await read_body(iter_pieces(bytes(FREE_BYTES + 9), 1 << 16), "", FREE_BYTES + 5, slot)
        for _ in range(SLOTS + 1):
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    with slots.slot() as slot:
                        await read_body(iter_silent(), "", 1 << 30, slot)
        async with asyncio.timeout(HANG_SECONDS):
            with slots.slot() as slot:
                body = await read_body(iter_pieces(bytes(FREE_BYTES * 2), 1 << 16), "", 1 << 20, slot)
        assert len(body) == FREE_BYTES * 2

    asyncio.run(fail_and_read())


@pytest.mark.parametrize(("bodies", "free"), [(1, FREE_BYTES), (128, FREE_BYTES), (1024, 32 << 10), (10**6, 16 << 10)])
def test_more_connections_reduce_the_bytes_read_without_a_slot(bodies: int, free: int) -> None:
    assert BodySlots(bodies).free_bytes == free


def make_long_answer(text: str) -> bytes:
    body = json.dumps({"choices": [{"finish_reason": "stop", "message": {"content": text}}]}).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


@asynccontextmanager
async def run_raw_server(data: bytes) -> AsyncIterator[str]:
    """Start a server that sends `data` at once and never closes; yield its base URL."""

    async def handle_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"}")
        writer.write(data)
        with suppress(ConnectionError):
            await writer.drain()
            await reader.read()
        writer.close()

    async with run_in_event_loop(handle_connection) as address:
        yield f"{address}/v1"


def test_slot_is_held_until_the_answer_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    release, was_acquired = BodySlot.__exit__, list[bool]()

    def exit_and_record(slot: BodySlot, *error: object) -> None:
        was_acquired.append(slot.is_acquired)
        release(slot, *error)

    async def complete_long_answer() -> list[bool]:
        monkeypatch.setattr(BodySlot, "__exit__", exit_and_record)
        async with run_raw_server(make_long_answer("x" * 2 * FREE_BYTES)) as url:
            model = OpenAiModel(model_settings(base_url=url), "small", 1)
            await model.complete(Request("small", CHAT, SAMPLE))
            await model.close()
        return was_acquired

    assert asyncio.run(complete_long_answer()) == [True]


def test_trickling_server_does_not_use_the_slots_of_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = make_long_answer("x" * 2 * FREE_BYTES)
    acquire, acquired, all_acquired = BodySlot.acquire, Counter[str](), asyncio.Event()

    async def acquire_and_count(slot: BodySlot) -> None:
        await acquire(slot)
        acquired["slots"] += 1
        if acquired["slots"] >= SLOTS:
            all_acquired.set()

    async def complete_beside_trickling_calls() -> Completion:
        monkeypatch.setattr(BodySlot, "acquire", acquire_and_count)
        async with run_raw_server(answer[:-1]) as trickling_url, run_raw_server(answer) as normal_url:
            groups = {
                "slow": model_settings(base_url=trickling_url, timeout=2 * HANG_SECONDS),
                "good": model_settings(base_url=normal_url),
            }
            connection = ModelConnector(groups, Retry()).connect()
            slow_calls = [
                asyncio.ensure_future(connection.complete(Request("slow", CHAT, SAMPLE._replace(round=i))))
                for i in range(SLOTS)
            ]
            try:
                async with asyncio.timeout(HANG_SECONDS):
                    await all_acquired.wait()
                    return await connection.complete(Request("good", CHAT, SAMPLE))
            finally:
                await cancel_all(slow_calls)
                await connection.close()

    assert len(asyncio.run(complete_beside_trickling_calls()).choices[0].text or "") == 2 * FREE_BYTES
