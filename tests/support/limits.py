"""Limits on a clock of their own, and calls to fill them with."""

from __future__ import annotations

import asyncio

from runner.base.errors import TransientError
from runner.models.interface import Choice, Completion, Request, SampleKey
from runner.models.layers.limits import GroupLimit

ANSWER = Completion((Choice("x", "stop"),), "tiny")
TOO_MANY = TransientError("429", status=429)


class Time:
    """A clock that only sleeping moves."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.slept: list[float] = []

    def clock(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


def limit_of(most: int, time: Time | None = None, **rates: float) -> GroupLimit:
    time = time or Time()
    return GroupLimit("m", most, clock=time.clock, sleep=time.sleep, **rates)


def request(group: str = "m", index: int = 0) -> Request:
    return Request(group, ({"role": "user", "content": "x"},), SampleKey(f"p{index}", 0, 0, "verifier", 0))


async def steps(count: int) -> None:
    """Wait for so many turns of the event loop: an order that no load of the machine changes."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settled() -> None:
    await steps(20)


async def full_round(limit: GroupLimit, outcome: BaseException | None = None) -> int:
    """Fill the limit, then end every call: how many were in flight."""
    count = int(limit.limit)
    for _ in range(count):
        await limit.enter()
    for _ in range(count):
        limit.succeeded() if outcome is None else limit.failed(outcome)
    return count
