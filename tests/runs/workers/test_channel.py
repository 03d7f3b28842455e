"""Messages arrive complete and in order, over sockets and in pieces over Ray."""

from __future__ import annotations

import asyncio
import random
import socket
from typing import Any

from runner.runs.workers.channel import MAX_WAITING_MESSAGES, SocketChannel
from runner.runs.workers.cluster.actor_channel import PIECE_BYTES
from runner.runs.workers.frames import FrameReader, Outbox, PickledMessage
from tests.support.hang_guard import HANG_SECONDS

SIZES = [1, 4096, 2 << 20, 10, 9 << 20, 7, 300_000, 300_000, 1]


def test_messages_of_any_size_arrive_in_order_over_a_socket() -> None:
    async def play() -> list[bytes]:
        receiving_end, sending_end = socket.socketpair()
        received: list[bytes] = []
        closed = asyncio.Event()
        await SocketChannel.open(receiving_end, received.extend, closed.set)
        channel = await SocketChannel.open(sending_end, lambda _: None, lambda: None)
        for turn in range(2):
            for number, size in enumerate(SIZES):
                channel.send(bytes([turn, number]) * size)
                if number % 3 == turn:
                    await asyncio.sleep(0)
        channel.close()
        async with asyncio.timeout(HANG_SECONDS):
            await closed.wait()
        return received

    received = asyncio.run(play())
    assert [(*message[:2], len(message)) for message in received] == [
        (turn, number, 2 * size) for turn in range(2) for number, size in enumerate(SIZES)
    ]


def test_many_messages_of_one_event_loop_turn_are_sent_before_it_ends() -> None:
    async def play() -> int:
        sending_end, receiving_end = socket.socketpair()
        channel = await SocketChannel.open(sending_end, lambda _: None, lambda: None)
        for number in range(MAX_WAITING_MESSAGES + 1):
            channel.send(number)
        with receiving_end:
            receiving_end.setblocking(False)
            (batch,) = FrameReader().feed(receiving_end.recv(1 << 16))
        channel.close()
        return len(batch)

    assert asyncio.run(play()) == MAX_WAITING_MESSAGES


def test_messages_of_any_size_arrive_in_order_in_pieces() -> None:
    rng, outbox, reader = random.Random(1), Outbox(), FrameReader()
    sent: list[Any] = []
    pieces: list[bytes] = []
    for number in range(40):
        message = (number, "x" * rng.choice([0, 10, PIECE_BYTES - 1, PIECE_BYTES, 3 * PIECE_BYTES]))
        sent.append(message)
        outbox.add(message)
        if number % 7 == 0:
            pieces.append(bytes(outbox.take(PIECE_BYTES)))
    while outbox:
        pieces.append(bytes(outbox.take(PIECE_BYTES)))
    assert max(map(len, pieces)) <= PIECE_BYTES
    assert [message for piece in pieces for batch in reader.feed(piece) for message in batch] == sent
    assert not outbox.take(1)


def test_a_message_that_is_pickled_in_advance_arrives_unchanged() -> None:
    outbox, pickled = Outbox(), PickledMessage([1, {"two": (3,)}])
    outbox.add(pickled)
    outbox.add(pickled)
    (batch,) = FrameReader().feed(bytes(outbox.take()))
    assert batch == [[1, {"two": (3,)}]] * 2
