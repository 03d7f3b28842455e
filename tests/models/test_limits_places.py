"""Places: never more in flight than there are, none lost, and shared fairly between groups."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import TransientError
from runner.models.interface import Completion, Request
from runner.models.layers.limits import FairSemaphore, GroupLimit, within_limits
from tests.support.event_loop import as_coroutine, run_loop_turns, settle
from tests.support.hang_guard import HANG_SECONDS
from tests.support.rate_limits import ANSWER, RATE_LIMIT_ERROR, FakeClock, fill_and_empty, make_limit, make_request

# Places


def within(limit: GroupLimit, gate: FairSemaphore, ask: Callable[[Request], Awaitable[Completion]]) -> Any:
    return within_limits(ask, gate, {"m": limit}, lambda _: 10)


@pytest.mark.parametrize(("most", "gate_size"), [(3, 64), (64, 3), (16, 16)])
def test_no_more_are_in_flight_than_the_limit_whatever_fails(most: int, gate_size: int) -> None:
    async def go() -> None:
        rng, time = random.Random(5), FakeClock()
        limit, gate = make_limit(most, time), FairSemaphore(gate_size)
        open_ = highest = 0

        async def ask(_: Request) -> Completion:
            nonlocal open_, highest
            open_ += 1
            highest = max(highest, open_)
            assert open_ <= min(max(int(limit.limit), limit._in_flight), gate_size)
            try:
                await run_loop_turns(rng.randrange(40))
                if rng.random() < 0.1:
                    raise RATE_LIMIT_ERROR
                if rng.random() < 0.1:
                    raise TransientError("500", status=500)
                return ANSWER
            finally:
                open_ -= 1

        complete = within(limit, gate, ask)
        tasks = [asyncio.create_task(complete(make_request(index=i))) for i in range(400)]
        for task in rng.sample(tasks, 120):
            await run_loop_turns(rng.randrange(10))
            task.cancel()
            time.now += rng.uniform(0, 3)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), HANG_SECONDS)
        assert highest <= min(most, gate_size)
        # No place was lost: as many as ever can enter at once.
        assert limit._in_flight == 0
        assert gate._free == gate_size
        assert not gate._waiting
        assert await fill_and_empty(limit) >= 1

    asyncio.run(go())


def test_a_call_given_up_while_it_waits_takes_no_place() -> None:
    async def go() -> None:
        limit = make_limit(1)
        await limit.enter()
        waiting = [asyncio.create_task(limit.enter()) for _ in range(3)]
        await settle()
        waiting[0].cancel()
        limit.succeeded()
        # The one that was woken is given up in the same moment: its place goes on to the next.
        waiting[1].cancel()
        await settle()
        await waiting[2]
        assert limit._in_flight == 1

    asyncio.run(go())


def test_a_call_given_up_while_the_server_has_it_wait_frees_its_place() -> None:
    async def go() -> None:
        limit = GroupLimit("m", 1)
        await limit.enter()
        limit.failed(TransientError("429", status=429, retry_after=30.0))
        task = asyncio.create_task(limit.enter())
        await settle()
        assert limit._in_flight == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert limit._in_flight == 0

    asyncio.run(go())


# The gate


def test_the_gate_lets_groups_in_by_turns() -> None:
    async def go() -> list[str]:
        gate, order = FairSemaphore(2), []
        await gate.enter("slow")
        await gate.enter("slow")

        async def one(group: str) -> None:
            await gate.enter(group)
            order.append(group)

        tasks = [asyncio.create_task(one("slow")) for _ in range(20)]
        await settle()
        tasks += [asyncio.create_task(one("quick")) for _ in range(5)]
        await settle()
        for _ in range(25):
            gate.leave()
            await settle()
        await asyncio.gather(*tasks)
        return order

    order = asyncio.run(go())
    assert Counter(order) == {"slow": 20, "quick": 5}
    assert order[:10].count("quick") >= 4


def test_the_gate_keeps_the_order_within_a_group() -> None:
    async def go() -> list[int]:
        gate, order = FairSemaphore(1), []
        await gate.enter("m")

        async def one(index: int) -> None:
            await gate.enter("m")
            order.append(index)
            gate.leave()

        tasks = [asyncio.create_task(one(index)) for index in range(10)]
        await settle()
        gate.leave()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(go()) == list(range(10))


def test_a_place_that_was_given_to_a_call_that_was_given_up_goes_on() -> None:
    async def go() -> None:
        gate = FairSemaphore(1)
        await gate.enter("m")
        first, second = asyncio.create_task(gate.enter("m")), asyncio.create_task(gate.enter("m"))
        await settle()
        gate.leave()
        first.cancel()
        await second
        gate.leave()
        await gate.enter("m")

    asyncio.run(go())


def test_a_slow_group_does_not_starve_a_quick_one(tmp_path: Path) -> None:
    """Prover slow, verifier quick: no game waits for another's prover when it is the verifier's turn."""

    async def go() -> dict[str, int]:
        gate, done = FairSemaphore(4), Counter[str]()
        limits = {"slow": make_limit(64), "quick": make_limit(64)}

        async def ask(asked: Request) -> Completion:
            await run_loop_turns(50 if asked.group == "slow" else 1)
            done[asked.group] += 1
            return ANSWER

        complete = within_limits(ask, gate, limits, lambda _: 1)
        tasks = [asyncio.create_task(as_coroutine(complete(make_request("slow", i)))) for i in range(60)]
        await settle()
        quick = [asyncio.create_task(as_coroutine(complete(make_request("quick", i)))) for i in range(8)]
        await asyncio.gather(*quick)
        seen = dict(done)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seen

    assert asyncio.run(go())["slow"] <= 24
