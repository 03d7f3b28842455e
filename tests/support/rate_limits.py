"""Limits of model groups on a fake clock, and requests that fill them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from runner.base.errors import TransientError
from runner.models.interface import Choice, Completion, Request, SampleKey
from runner.models.layers.limits import GroupLimit, Sleep

ANSWER = Completion((Choice("x", "stop"),), "tiny")
RATE_LIMIT_ERROR = TransientError("429", status=429)


class FakeClock:
    """A clock that only `sleep` advances."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.sleeps: list[float] = []

    def read(self) -> float:
        return self.now

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)


class SimulatedLimit(GroupLimit):
    """A limit whose calls sleep on a fake clock."""

    def __init__(self, max_in_flight: int, clock: FakeClock, **rates: float) -> None:
        self._fake_clock = clock
        super().__init__("m", max_in_flight, clock=clock.read, **rates)

    async def enter(self, tokens: Callable[[], int] = lambda: 0, sleep: Sleep = asyncio.sleep) -> int:
        del sleep
        return await super().enter(tokens, self._fake_clock.sleep)


def make_limit(max_in_flight: int, clock: FakeClock | None = None, **rates: float) -> GroupLimit:
    return SimulatedLimit(max_in_flight, clock or FakeClock(), **rates)


def make_request(group: str = "m", index: int = 0) -> Request:
    return Request(group, ({"role": "user", "content": "x"},), SampleKey(f"p{index}", 0, 0, "verifier", 0))


async def fill_and_empty(limit: GroupLimit, outcome: BaseException | None = None) -> int:
    """Fill the limit, then end every call with `outcome`; return how many calls were in flight."""
    count = int(limit.limit)
    for _ in range(count):
        await limit.enter()
    for _ in range(count):
        limit.succeeded() if outcome is None else limit.failed(outcome)
    return count
