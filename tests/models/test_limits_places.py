"""Slots for concurrent calls: never exceeded, never lost, and shared fairly between groups."""

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

# Slots


def apply_limits(
    limit: GroupLimit, semaphore: FairSemaphore, answer_call: Callable[[Request], Awaitable[Completion]]
) -> Any:
    return within_limits(answer_call, semaphore, {"m": limit}, lambda _: 10)


@pytest.mark.parametrize(("max_in_flight", "semaphore_size"), [(3, 64), (64, 3), (16, 16)])
def test_calls_in_flight_never_exceed_the_limit_despite_failures(max_in_flight: int, semaphore_size: int) -> None:
    async def run_calls() -> None:
        rng, time = random.Random(5), FakeClock()
        limit, semaphore = make_limit(max_in_flight, time), FairSemaphore(semaphore_size)
        open_calls = max_open_calls = 0

        async def answer_call(_: Request) -> Completion:
            nonlocal open_calls, max_open_calls
            open_calls += 1
            max_open_calls = max(max_open_calls, open_calls)
            assert open_calls <= min(max(int(limit.limit), limit._in_flight), semaphore_size)
            try:
                await run_loop_turns(rng.randrange(40))
                if rng.random() < 0.1:
                    raise RATE_LIMIT_ERROR
                if rng.random() < 0.1:
                    raise TransientError("500", status=500)
                return ANSWER
            finally:
                open_calls -= 1

        complete = apply_limits(limit, semaphore, answer_call)
        tasks = [asyncio.create_task(complete(make_request(index=i))) for i in range(400)]
        for task in rng.sample(tasks, 120):
            await run_loop_turns(rng.randrange(10))
            task.cancel()
            time.now += rng.uniform(0, 3)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), HANG_SECONDS)
        assert max_open_calls <= min(max_in_flight, semaphore_size)
        # No slot was lost: as many calls as before can enter.
        assert limit._in_flight == 0
        assert semaphore._free == semaphore_size
        assert not semaphore._waiting
        assert await fill_and_empty(limit) >= 1

    asyncio.run(run_calls())


def test_call_cancelled_while_waiting_takes_no_slot() -> None:
    async def run_calls() -> None:
        limit = make_limit(1)
        await limit.enter()
        waiting = [asyncio.create_task(limit.enter()) for _ in range(3)]
        await settle()
        waiting[0].cancel()
        limit.succeeded()
        # The call that was just woken is cancelled, too: its slot goes to the next call.
        waiting[1].cancel()
        await settle()
        await waiting[2]
        assert limit._in_flight == 1

    asyncio.run(run_calls())


def test_call_cancelled_during_a_requested_wait_frees_its_slot() -> None:
    async def run_calls() -> None:
        limit = GroupLimit("m", 1)
        await limit.enter()
        limit.failed(TransientError("429", status=429, retry_after=30.0))
        task = asyncio.create_task(limit.enter())
        await settle()
        assert limit._in_flight == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert limit._in_flight == 0

    asyncio.run(run_calls())


# The semaphore


def test_semaphore_alternates_between_groups() -> None:
    async def run_calls() -> list[str]:
        semaphore, order = FairSemaphore(2), []
        await semaphore.enter("slow")
        await semaphore.enter("slow")

        async def enter_group(group: str) -> None:
            await semaphore.enter(group)
            order.append(group)

        tasks = [asyncio.create_task(enter_group("slow")) for _ in range(20)]
        await settle()
        tasks += [asyncio.create_task(enter_group("quick")) for _ in range(5)]
        await settle()
        for _ in range(25):
            semaphore.leave()
            await settle()
        await asyncio.gather(*tasks)
        return order

    order = asyncio.run(run_calls())
    assert Counter(order) == {"slow": 20, "quick": 5}
    assert order[:10].count("quick") >= 4


def test_semaphore_keeps_the_order_within_a_group() -> None:
    async def run_calls() -> list[int]:
        semaphore, order = FairSemaphore(1), []
        await semaphore.enter("m")

        async def enter_and_leave(index: int) -> None:
            await semaphore.enter("m")
            order.append(index)
            semaphore.leave()

        tasks = [asyncio.create_task(enter_and_leave(index)) for index in range(10)]
        await settle()
        semaphore.leave()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(run_calls()) == list(range(10))


def test_slot_of_a_cancelled_call_goes_to_the_next_call() -> None:
    async def run_calls() -> None:
        semaphore = FairSemaphore(1)
        await semaphore.enter("m")
        first, second = asyncio.create_task(semaphore.enter("m")), asyncio.create_task(semaphore.enter("m"))
        await settle()
        semaphore.leave()
        first.cancel()
        await second
        semaphore.leave()
        await semaphore.enter("m")

    asyncio.run(run_calls())


def test_slow_group_does_not_starve_a_quick_one(tmp_path: Path) -> None:
    """A quick verifier's call never waits for the slow prover of another game."""

    async def run_calls() -> dict[str, int]:
        semaphore, done_by_group = FairSemaphore(4), Counter[str]()
        limits = {"slow": make_limit(64), "quick": make_limit(64)}

        async def answer_call(request: Request) -> Completion:
            await run_loop_turns(50 if request.group == "slow" else 1)
            done_by_group[request.group] += 1
            return ANSWER

        complete = within_limits(answer_call, semaphore, limits, lambda _: 1)
        tasks = [asyncio.create_task(as_coroutine(complete(make_request("slow", i)))) for i in range(60)]
        await settle()
        quick_calls = [asyncio.create_task(as_coroutine(complete(make_request("quick", i)))) for i in range(8)]
        await asyncio.gather(*quick_calls)
        done_calls = dict(done_by_group)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return done_calls

    assert asyncio.run(run_calls())["slow"] <= 24
