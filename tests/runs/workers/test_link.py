"""What a worker says comes to the writer whole and in order: through memory that both have, and through the socket."""

from __future__ import annotations

import asyncio
import os
import random
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any

import pytest

from runner.runs.workers.link import LEAST_SHARED, SocketLink
from runner.runs.workers.shared_memory import SIZE, Arena, shared
from tests.support.hang_guard import HANG_SECONDS

pytestmark = pytest.mark.skipif(not hasattr(os, "memfd_create"), reason="memory that processes share is Linux's")


def ends() -> tuple[Arena, Arena]:
    """Both ends of a ring."""
    made = shared()
    assert made is not None
    descriptor, arena = made
    both = arena, Arena(descriptor)
    os.close(descriptor)
    return both


@pytest.mark.parametrize("largest", [SIZE, SIZE // 5, SIZE // 90])
def test_what_is_left_in_a_ring_is_found_there_whatever_was_read_before(largest: int) -> None:
    rng = random.Random(largest)
    steps = [(rng.randint(1, largest), rng.choice([0, 0, 1, 1, 1, 2, 90])) for _ in range(120)]
    into, out_of = ends()
    waiting: deque[tuple[int, int, bytes]] = deque()
    for number, (size, reads) in enumerate(steps):
        last = number.to_bytes(1, "little")
        place = into.put(b"\0" * (size - 1) + last)
        if place is None:
            assert waiting, "there is room for anything in a ring that is empty"
        else:
            waiting.append((place, size, last))
        for _ in range(min(reads, len(waiting))):
            first, length, ends_with = waiting.popleft()
            with out_of.taken(first, length) as view:
                assert (len(view), bytes(view[-1:])) == (length, ends_with)


def test_what_does_not_fit_into_a_ring_is_not_put_there() -> None:
    into, out_of = ends()
    assert into.put(b"x" * (SIZE + 1)) is None
    first = into.put(b"a" * (SIZE - 10))
    assert first is not None
    assert into.put(b"b" * 11) is None
    with out_of.taken(first, SIZE - 10) as view:
        assert into.put(b"b" * 11) is None, "it is being read"
        assert bytes(view) == b"a" * (SIZE - 10)
    assert into.put(b"b" * 11) is not None


SIZES = [
    1,
    LEAST_SHARED,
    SIZE // 2,
    SIZE + 1,
    10,
    SIZE // 3,
    SIZE // 3,
    SIZE // 3,
    SIZE // 3,
    3 * SIZE,
    7,
    LEAST_SHARED,
]


def test_messages_come_in_their_order_where_the_ring_is_full_and_where_it_is_not() -> None:
    async def play() -> list[bytes]:
        into, out_of = ends()
        ours, theirs = socket.socketpair()
        heard: list[bytes] = []
        all_there = asyncio.Event()

        def hear(batch: Any) -> None:
            heard.extend(batch)
            if len(heard) == 2 * len(SIZES):
                all_there.set()

        await SocketLink.over(ours, hear, lambda: None, incoming=out_of)
        link = await SocketLink.over(theirs, lambda _: None, lambda: None, outgoing=into)
        for turn in range(2):
            for number, size in enumerate(SIZES):
                link.send(bytes([turn, number]) * size)
                if number % 3 == turn:
                    await asyncio.sleep(0)
        await asyncio.wait_for(all_there.wait(), HANG_SECONDS)
        link.close()
        return heard

    heard = asyncio.run(play())
    assert [(*one[:2], len(one)) for one in heard] == [
        (turn, number, 2 * size) for turn in range(2) for number, size in enumerate(SIZES)
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="told from /proc")
def test_the_memory_is_given_back_with_both_ends() -> None:
    def mapped() -> int:
        return Path("/proc/self/maps").read_text().count("memfd:nip-run")

    before = mapped()
    both = ends()
    assert mapped() == before + 2
    del both
    assert mapped() == before
