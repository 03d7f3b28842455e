"""How much is in flight: never more than the limit, fair between groups, slower when the server says so."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from runner.errors import ContextExceededError, TransientError
from runner.models.base import Choice, Completion, Request, Sample, Usage
from runner.models.limits import COOL_DOWN_SECONDS, Bucket, Gate, GroupLimit, within_limits
from tests.batch_server.client import providing
from tests.server.client import serving
from tests.server.play import derived_files, played, spec_file

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
    return Request(group, ({"role": "user", "content": "x"},), Sample(f"p{index}", 0, 0, "verifier", 0))


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def full_round(limit: GroupLimit, outcome: BaseException | None = None) -> int:
    """Fill the limit, then end every call: how many were in flight."""
    count = int(limit.limit)
    for _ in range(count):
        await asyncio.wait_for(limit.enter(0), 1)
    for _ in range(count):
        limit.succeeded() if outcome is None else limit.failed(outcome)
    return count


# The adaptive limit


@pytest.mark.parametrize(("most", "first"), [(1, 1), (4, 4), (8, 8), (16, 8), (64, 16), (256, 64)])
def test_it_starts_with_a_quarter_or_a_handful(most: int, first: int) -> None:
    assert int(limit_of(most).limit) == first


async def rounds_under_load(limit: GroupLimit, count: int, *, together: bool) -> list[int]:
    """How many were in flight in each of `count` round trips, with many more calls waiting all the time."""
    waiting = [asyncio.create_task(limit.enter(0)) for _ in range(2000)]
    found = []
    for _ in range(count):
        await settled()
        found.append(limit._in_flight)
        for _ in range(found[-1]):
            limit.succeeded()
            if not together:
                await settled()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return found


@pytest.mark.parametrize("together", [False, True])
def test_it_doubles_with_each_round_trip_that_was_full_up_to_the_concurrency(together: bool) -> None:
    """Also where the answers of a round trip come in one moment, as from a server of constant latency."""
    counts = asyncio.run(rounds_under_load(limit_of(100), 4, together=together))
    assert counts[0] == 25
    assert counts[1] > 40
    assert counts[-1] == 100


def test_it_does_not_grow_while_it_is_not_full() -> None:
    async def go() -> float:
        limit = limit_of(100)
        for _ in range(200):
            await limit.enter(0)
            limit.succeeded()
        return limit.limit

    assert asyncio.run(go()) == 25


def test_it_shrinks_once_in_a_cool_down_however_many_429_come() -> None:
    async def go() -> tuple[float, float, float]:
        time = Time()
        limit = limit_of(100, time)
        await full_round(limit, TOO_MANY)
        first = limit.limit
        time.now += COOL_DOWN_SECONDS - 0.1
        await full_round(limit, TOO_MANY)
        second = limit.limit
        time.now += 0.2
        await full_round(limit, TOO_MANY)
        return first, second, limit.limit

    first, second, third = asyncio.run(go())
    assert first == second == pytest.approx(20)
    assert third == pytest.approx(16)


def test_it_never_shrinks_below_one() -> None:
    async def go() -> float:
        time = Time()
        limit = limit_of(4, time)
        for _ in range(50):
            await full_round(limit, TOO_MANY)
            time.now += 100
        return limit.limit

    assert asyncio.run(go()) == 1


@pytest.mark.parametrize("together", [False, True])
def test_after_a_429_it_grows_by_one_a_round_trip(together: bool) -> None:
    async def go() -> list[int]:
        time = Time()
        limit = limit_of(100, time)
        await full_round(limit, TOO_MANY)
        time.now += COOL_DOWN_SECONDS + 1
        return await rounds_under_load(limit, 10, together=together)

    counts = asyncio.run(go())
    assert counts[0] == 20
    assert all(0 <= later - earlier <= 2 for earlier, later in itertools.pairwise(counts))
    assert 26 <= counts[-1] <= 31


def test_it_recovers_from_one() -> None:
    async def go() -> float:
        time = Time()
        limit = limit_of(8, time)
        for _ in range(20):
            await full_round(limit, TOO_MANY)
            time.now += 100
        for _ in range(20):
            await full_round(limit)
        return limit.limit

    assert asyncio.run(go()) > 4


@pytest.mark.parametrize(
    "error", [TransientError("500", status=500), TransientError("cut off"), ContextExceededError("x")]
)
def test_other_failures_do_not_shrink_it(error: Exception) -> None:
    async def go() -> float:
        limit = limit_of(100)
        await full_round(limit, error)
        return limit.limit

    assert asyncio.run(go()) == 25


def test_a_429_holds_the_whole_group_back_for_as_long_as_the_server_asks() -> None:
    async def go() -> tuple[float, float]:
        time = Time()
        limit = limit_of(8, time)
        await limit.enter(0)
        begun = time.now
        limit.failed(TransientError("429", status=429, retry_after=7.5))
        await limit.enter(0)
        held = time.now - begun
        limit.succeeded()
        await limit.enter(0)
        return held, time.now - begun - held

    held, again = asyncio.run(go())
    assert held == pytest.approx(7.5)
    assert again == 0


def test_what_it_did_is_in_the_run_s_log(tmp_path: Path) -> None:
    with serving(faults={"rate_limit": 0.3}, max_faults=1, latency=0.01) as server:
        result = played(spec_file(tmp_path, server.base_url, rollouts={"concurrency": 12}), tmp_path / "results")
    text = result.folder.log.read_text()
    assert "m: 429, down to" in text


# Places


def within(limit: GroupLimit, gate: Gate, ask: Callable[[Request], Awaitable[Completion]]) -> Any:
    return within_limits(ask, gate, {"m": limit}, lambda _: 10)


@pytest.mark.parametrize(("most", "gate_size"), [(3, 64), (64, 3), (16, 16)])
def test_never_more_in_flight_than_the_limit_whatever_fails_or_is_given_up(most: int, gate_size: int) -> None:
    async def go() -> None:
        rng, time = random.Random(5), Time()
        limit, gate = limit_of(most, time), Gate(gate_size)
        open_ = highest = 0

        async def ask(_: Request) -> Completion:
            nonlocal open_, highest
            open_ += 1
            highest = max(highest, open_)
            assert open_ <= min(max(int(limit.limit), limit._in_flight), gate_size)
            try:
                await asyncio.sleep(rng.uniform(0, 0.002))
                if rng.random() < 0.1:
                    raise TOO_MANY
                if rng.random() < 0.1:
                    raise TransientError("500", status=500)
                return ANSWER
            finally:
                open_ -= 1

        complete = within(limit, gate, ask)
        tasks = [asyncio.create_task(complete(request(index=i))) for i in range(400)]
        for task in rng.sample(tasks, 120):
            await asyncio.sleep(rng.uniform(0, 0.0005))
            task.cancel()
            time.now += rng.uniform(0, 3)
        await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
        assert highest <= min(most, gate_size)
        # No place was lost: as many as ever can enter at once.
        assert limit._in_flight == 0
        assert gate._free == gate_size
        assert not gate._waiting
        assert await full_round(limit) >= 1

    asyncio.run(go())


def test_a_call_that_is_given_up_while_it_waits_takes_nobody_s_place() -> None:
    async def go() -> None:
        limit = limit_of(1)
        await limit.enter(0)
        waiting = [asyncio.create_task(limit.enter(0)) for _ in range(3)]
        await settled()
        waiting[0].cancel()
        limit.succeeded()
        # The one that was woken is given up in the same moment: its place goes on to the next.
        waiting[1].cancel()
        await settled()
        await asyncio.wait_for(waiting[2], 1)
        assert limit._in_flight == 1

    asyncio.run(go())


def test_a_call_that_is_given_up_during_the_server_s_wait_gives_its_place_back() -> None:
    async def go() -> None:
        limit = GroupLimit("m", 1)
        await limit.enter(0)
        limit.failed(TransientError("429", status=429, retry_after=30.0))
        task = asyncio.create_task(limit.enter(0))
        await asyncio.sleep(0.01)
        assert limit._in_flight == 1
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert limit._in_flight == 0

    asyncio.run(go())


# The gate


def test_the_gate_lets_groups_in_by_turns() -> None:
    async def go() -> list[str]:
        gate, order = Gate(2), []
        await gate.enter("slow")
        await gate.enter("slow")

        async def one(group: str) -> None:
            await gate.enter(group)
            order.append(group)

        tasks = [asyncio.create_task(one("slow")) for _ in range(20)]
        await settled()
        tasks += [asyncio.create_task(one("quick")) for _ in range(5)]
        await settled()
        for _ in range(25):
            gate.leave()
            await settled()
        await asyncio.gather(*tasks)
        return order

    order = asyncio.run(go())
    assert Counter(order) == {"slow": 20, "quick": 5}
    assert order[:10].count("quick") >= 4


def test_the_gate_keeps_the_order_within_a_group() -> None:
    async def go() -> list[int]:
        gate, order = Gate(1), []
        await gate.enter("m")

        async def one(index: int) -> None:
            await gate.enter("m")
            order.append(index)
            gate.leave()

        tasks = [asyncio.create_task(one(index)) for index in range(10)]
        await settled()
        gate.leave()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(go()) == list(range(10))


def test_a_place_that_was_given_to_a_call_that_was_given_up_goes_on() -> None:
    async def go() -> None:
        gate = Gate(1)
        await gate.enter("m")
        first, second = asyncio.create_task(gate.enter("m")), asyncio.create_task(gate.enter("m"))
        await settled()
        gate.leave()
        first.cancel()
        await asyncio.wait_for(second, 1)
        gate.leave()
        await asyncio.wait_for(gate.enter("m"), 1)

    asyncio.run(go())


def test_a_slow_group_does_not_starve_a_quick_one(tmp_path: Path) -> None:
    """Prover slow, verifier quick: no game waits for another's prover when it is the verifier's turn."""

    async def go() -> dict[str, int]:
        gate, done = Gate(4), Counter[str]()
        limits = {"slow": limit_of(64), "quick": limit_of(64)}

        async def ask(asked: Request) -> Completion:
            await asyncio.sleep(0.05 if asked.group == "slow" else 0.001)
            done[asked.group] += 1
            return ANSWER

        complete = within_limits(ask, gate, limits, lambda _: 1)
        tasks = [asyncio.create_task(complete(request("slow", i))) for i in range(60)]
        await asyncio.sleep(0.01)
        quick = [asyncio.create_task(complete(request("quick", i))) for i in range(8)]
        await asyncio.gather(*quick)
        seen = dict(done)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return seen

    assert asyncio.run(go())["slow"] <= 24


# Rates


def spent(bucket: Bucket, time: Time, amounts: Iterator[float] | list[float]) -> float:
    """Seconds until all amounts were used, each after its wait."""
    begun = time.now
    for amount in amounts:
        time.now += bucket.wait_for(amount)
    return time.now - begun


def test_a_bucket_lets_a_burst_pass_and_then_its_rate() -> None:
    time = Time()
    bucket = Bucket(600.0, time.clock)
    assert spent(bucket, time, [1] * 60) == 0
    assert spent(bucket, time, [1] * 600) == pytest.approx(60, abs=0.5)


def test_a_bucket_never_lets_more_pass_in_a_minute_than_its_rate_and_a_burst() -> None:
    rng, time = random.Random(4), Time()
    bucket = Bucket(1000.0, time.clock)
    used: list[tuple[float, float]] = []
    for _ in range(400):
        amount = rng.uniform(1, 80)
        time.now += bucket.wait_for(amount)
        used.append((time.now, amount))
        time.now += rng.choice([0, 0, 0, 2, 10])
    for at, _ in used:
        assert sum(amount for when, amount in used if at <= when < at + 60) <= 1000 * 1.1 + 80


def test_what_is_more_than_a_burst_passes_alone_and_is_paid_off_afterwards() -> None:
    time = Time()
    bucket = Bucket(60.0, time.clock)
    assert bucket.wait_for(30) == 0
    assert bucket.wait_for(1) == pytest.approx(25, abs=1.1)


def test_calls_that_wait_together_wait_one_after_another() -> None:
    time = Time()
    bucket = Bucket(60.0, time.clock)
    waits = [bucket.wait_for(1) for _ in range(20)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(14)


def test_requests_and_tokens_are_each_held_to_their_rate() -> None:
    async def go(count: int, tokens: int, **rates: float) -> float:
        time = Time()
        limit = limit_of(1, time, **rates)
        begun = time.now
        for _ in range(count):
            await limit.enter(tokens)
            limit.succeeded()
        return time.now - begun

    assert asyncio.run(go(120, 1, requests_per_minute=60)) == pytest.approx(114, abs=1)
    assert asyncio.run(go(120, 100, tokens_per_minute=6000)) == pytest.approx(114, abs=1)
    assert asyncio.run(go(120, 100, requests_per_minute=60, tokens_per_minute=12_000)) == pytest.approx(114, abs=1)


def test_rates_are_learnt_from_the_headers_where_the_spec_gives_none() -> None:
    async def go(headers: dict[str, str], **rates: float) -> float:
        time = Time()
        limit = limit_of(1, time, **rates)
        limit.learn(headers)
        begun = time.now
        for _ in range(66):
            limit.learn(headers)
            await limit.enter(1)
            limit.succeeded()
        return time.now - begun

    allowed = {"x-ratelimit-limit-requests": "60"}
    assert asyncio.run(go(allowed)) == pytest.approx(60, abs=1)
    assert asyncio.run(go(allowed, requests_per_minute=6000)) == 0
    for odd in ("", "0", "-1", "many", "1.5", "²"):
        assert asyncio.run(go({"x-ratelimit-limit-requests": odd})) == 0


def test_a_rate_that_the_server_changes_is_taken_over() -> None:
    limit = limit_of(1)
    for allowed in ("60", "120"):
        limit.learn({"x-ratelimit-limit-requests": allowed})
        assert limit._buckets["requests"].per_minute == float(allowed)


def test_tokens_that_a_call_did_not_use_are_given_back() -> None:
    """What a call may use is several times what it does use; the rate is the server's, for what is used."""

    async def go() -> float:
        time = Time()
        limit = limit_of(1, time, tokens_per_minute=6000)

        async def ask(_: Request) -> Completion:
            return Completion((Choice("x", "stop"),), "tiny", Usage(90, 10))

        complete = within_limits(ask, Gate(1), {"m": limit}, lambda _: 400)
        begun = time.now
        for index in range(120):
            await complete(request(index=index))
        return time.now - begun

    assert asyncio.run(go()) == pytest.approx(114, rel=0.2)


# Over a real server


def test_a_server_that_refuses_more_than_a_few_at_once_is_learnt_and_answers_all(tmp_path: Path) -> None:
    with providing(most_at_once=5, latency=0.01) as provider:
        path = spec_file(
            tmp_path, provider.base_url, size=24, rollouts={"concurrency": 24},
            retry={"transient": {"attempts": 30, "first_wait": 0.02, "max_wait": 0.2}},
        )  # fmt: skip
        result = played(path, tmp_path / "results")
        stats = provider.stats()
        provider.change(most_at_once=None)
        calm = played(path, tmp_path / "calm")
    assert stats["kinds"]["too_many"] > 0
    assert result.metrics["outcomes"]["decided"] == 24
    assert stats["billed"]["answers"] == calm.manifest["completions"]
    assert derived_files(result.folder.path) == derived_files(calm.folder.path)


def test_the_requests_a_minute_of_the_spec_are_kept(tmp_path: Path) -> None:
    import time

    with providing() as provider:
        path = spec_file(tmp_path, provider.base_url, size=12, models={"m": {"requests_per_minute": 300}})
        begun = time.monotonic()
        played(path, tmp_path / "results")
        seconds = time.monotonic() - begun
        asked = provider.stats()["chat"]
    # A burst of 30 at once, then five a second.
    assert seconds > (asked - 30) / 5 - 0.5
    assert seconds < (asked - 30) / 5 + 5


def test_the_requests_a_minute_of_the_headers_are_kept(tmp_path: Path) -> None:
    import time

    with providing(headers={"x-ratelimit-limit-requests": "300"}) as provider:
        path = spec_file(tmp_path, provider.base_url, size=12)
        begun = time.monotonic()
        result = played(path, tmp_path / "results")
        seconds = time.monotonic() - begun
        asked = provider.stats()["chat"]
    assert seconds > (asked - 30 - 8) / 5 - 0.5
    assert "allows 300 requests a minute" in result.folder.log.read_text()
