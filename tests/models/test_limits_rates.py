"""Requests and tokens per minute, from the spec or from the server's headers."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from runner.models.interface import Choice, Completion, Request, Usage
from runner.models.layers.limits import FairSemaphore, LeakyBucket, within_limits
from tests.support.event_loop import as_coroutine
from tests.support.rate_limits import FakeClock, make_limit, make_request
from tests.support.runs import run_spec
from tests.support.servers.batch_client import run_batch_provider
from tests.support.specs import spec_file

# Rates


def use_amounts(bucket: LeakyBucket, time: FakeClock, amounts: Iterator[float] | list[float]) -> float:
    """Use all amounts, each after its wait, and return the seconds it took."""
    started = time.now
    for amount in amounts:
        time.now += bucket.wait_for(amount)
    return time.now - started


def test_bucket_allows_a_burst_and_then_its_rate() -> None:
    time = FakeClock()
    bucket = LeakyBucket(600.0, time.read)
    assert use_amounts(bucket, time, [1] * 55) == 0
    assert use_amounts(bucket, time, [1] * 600) == pytest.approx(60, abs=0.5)


def test_bucket_allows_at_most_its_rate_and_a_burst_per_minute() -> None:
    rng, time = random.Random(4), FakeClock()
    bucket = LeakyBucket(1000.0, time.read)
    uses: list[tuple[float, float]] = []
    for _ in range(400):
        amount = rng.uniform(1, 80)
        time.now += bucket.wait_for(amount)
        uses.append((time.now, amount))
        time.now += rng.choice([0, 0, 0, 2, 10])
    for window_start, _ in uses:
        assert (
            sum(amount for used_at, amount in uses if window_start <= used_at < window_start + 60)
            <= 1000 + 5.5 / 60 * 1000 + 80
        )


def test_amount_larger_than_a_burst_passes_at_once_and_delays_later_ones() -> None:
    time = FakeClock()
    bucket = LeakyBucket(60.0, time.read)
    assert bucket.wait_for(30) == 0
    assert bucket.wait_for(1) == pytest.approx(25, abs=1.1)


def test_simultaneous_calls_wait_one_after_another() -> None:
    time = FakeClock()
    bucket = LeakyBucket(60.0, time.read)
    waits = [bucket.wait_for(1) for _ in range(20)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(14.5)


def test_requests_and_tokens_are_each_limited_to_their_rate() -> None:
    async def run_calls(count: int, tokens: int, **rates: float) -> float:
        time = FakeClock()
        limit = make_limit(1, time, **rates)
        started = time.now
        for _ in range(count):
            await limit.enter(lambda: tokens)
            limit.succeeded()
        return time.now - started

    assert asyncio.run(run_calls(120, 1, requests_per_minute=60)) == pytest.approx(114, abs=1)
    assert asyncio.run(run_calls(120, 100, tokens_per_minute=6000)) == pytest.approx(114, abs=1)
    assert asyncio.run(run_calls(120, 100, requests_per_minute=60, tokens_per_minute=12_000)) == pytest.approx(
        114, abs=1
    )


def test_waiting_calls_respect_a_rate_learned_in_the_meantime() -> None:
    async def run_calls() -> float:
        time = FakeClock()
        limit = make_limit(1, time)
        complete = within_limits(complete_call, FairSemaphore(1), {"m": limit}, lambda _: 100)
        await limit.enter()
        waiting = [asyncio.create_task(as_coroutine(complete(make_request(index=i)))) for i in range(120)]
        await asyncio.sleep(0)
        limit.learn_rates({"x-ratelimit-limit-tokens": "6000"})
        started = time.now
        limit.succeeded()
        await asyncio.gather(*waiting)
        return time.now - started

    async def complete_call(request: Request) -> Completion:
        return Completion((Choice("a", "stop"),), "m", Usage(90, 10))

    assert asyncio.run(run_calls()) == pytest.approx(114, abs=1)


def test_rates_are_learned_from_headers_if_the_spec_sets_none() -> None:
    async def run_calls(headers: dict[str, str], **rates: float) -> float:
        time = FakeClock()
        limit = make_limit(1, time, **rates)
        limit.learn_rates(headers)
        started = time.now
        for _ in range(66):
            limit.learn_rates(headers)
            await limit.enter(lambda: 1)
            limit.succeeded()
        return time.now - started

    allowed = {"x-ratelimit-limit-requests": "60"}
    assert asyncio.run(run_calls(allowed)) == pytest.approx(60, abs=1)
    assert asyncio.run(run_calls(allowed, requests_per_minute=6000)) == 0
    for invalid_value in ("", "0", "-1", "many", "1.5", "²"):
        assert asyncio.run(run_calls({"x-ratelimit-limit-requests": invalid_value})) == 0


def test_rate_follows_changes_by_the_server() -> None:
    limit = make_limit(1)
    for allowed in ("60", "120"):
        limit.learn_rates({"x-ratelimit-limit-requests": allowed})
        assert limit._buckets["requests"].per_minute == float(allowed)


def test_unused_reserved_tokens_are_returned() -> None:
    """A call reserves several times what it uses, but the server's rate limits only what it uses."""

    async def run_calls() -> float:
        time = FakeClock()
        limit = make_limit(1, time, tokens_per_minute=6000)

        async def complete_call(_: Request) -> Completion:
            return Completion((Choice("x", "stop"),), "tiny", Usage(90, 10))

        complete = within_limits(complete_call, FairSemaphore(1), {"m": limit}, lambda _: 400)
        started = time.now
        for index in range(120):
            await complete(make_request(index=index))
        return time.now - started

    assert asyncio.run(run_calls()) == pytest.approx(114, rel=0.2)


# With a local server


@pytest.mark.full
def test_requests_per_minute_of_the_spec_are_respected(tmp_path: Path) -> None:
    import time

    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, size=12, models={"m": {"requests_per_minute": 300}})
        started = time.monotonic()
        run_spec(path, tmp_path / "results")
        seconds = time.monotonic() - started
        requests = provider.stats()["chat"]
    # A burst of 27 calls, then 5 per second.
    assert seconds > (requests - 27) / 5 - 0.5


@pytest.mark.full
def test_requests_per_minute_of_the_headers_are_respected(tmp_path: Path) -> None:
    import time

    with run_batch_provider(headers={"x-ratelimit-limit-requests": "300"}) as provider:
        path = spec_file(tmp_path, provider.base_url, size=12)
        started = time.monotonic()
        result = run_spec(path, tmp_path / "results")
        seconds = time.monotonic() - started
        requests = provider.stats()["chat"]
    assert seconds > (requests - 30 - 8) / 5 - 0.5
    assert "allows 300 requests per minute" in result.folder.log.read_text()
