"""Requests and tokens a minute: the spec's, or those that the server's headers name."""

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


def spent(bucket: LeakyBucket, time: FakeClock, amounts: Iterator[float] | list[float]) -> float:
    """Seconds until all amounts were used, each after its wait."""
    begun = time.now
    for amount in amounts:
        time.now += bucket.wait_for(amount)
    return time.now - begun


def test_a_bucket_lets_a_burst_pass_and_then_its_rate() -> None:
    time = FakeClock()
    bucket = LeakyBucket(600.0, time.read)
    assert spent(bucket, time, [1] * 55) == 0
    assert spent(bucket, time, [1] * 600) == pytest.approx(60, abs=0.5)


def test_a_bucket_passes_no_more_in_a_minute_than_its_rate_and_a_burst() -> None:
    rng, time = random.Random(4), FakeClock()
    bucket = LeakyBucket(1000.0, time.read)
    used: list[tuple[float, float]] = []
    for _ in range(400):
        amount = rng.uniform(1, 80)
        time.now += bucket.wait_for(amount)
        used.append((time.now, amount))
        time.now += rng.choice([0, 0, 0, 2, 10])
    for at, _ in used:
        assert sum(amount for when, amount in used if at <= when < at + 60) <= 1000 + 5.5 / 60 * 1000 + 80


def test_more_than_a_burst_passes_alone_and_is_paid_off_afterwards() -> None:
    time = FakeClock()
    bucket = LeakyBucket(60.0, time.read)
    assert bucket.wait_for(30) == 0
    assert bucket.wait_for(1) == pytest.approx(25, abs=1.1)


def test_calls_that_wait_together_wait_one_after_another() -> None:
    time = FakeClock()
    bucket = LeakyBucket(60.0, time.read)
    waits = [bucket.wait_for(1) for _ in range(20)]
    assert waits == sorted(waits)
    assert waits[-1] == pytest.approx(14.5)


def test_requests_and_tokens_are_each_held_to_their_rate() -> None:
    async def go(count: int, tokens: int, **rates: float) -> float:
        time = FakeClock()
        limit = make_limit(1, time, **rates)
        begun = time.now
        for _ in range(count):
            await limit.enter(lambda: tokens)
            limit.succeeded()
        return time.now - begun

    assert asyncio.run(go(120, 1, requests_per_minute=60)) == pytest.approx(114, abs=1)
    assert asyncio.run(go(120, 100, tokens_per_minute=6000)) == pytest.approx(114, abs=1)
    assert asyncio.run(go(120, 100, requests_per_minute=60, tokens_per_minute=12_000)) == pytest.approx(114, abs=1)


def test_calls_that_waited_when_a_rate_was_learnt_are_held_to_it() -> None:
    async def go() -> float:
        time = FakeClock()
        limit = make_limit(1, time)
        complete = within_limits(answered, FairSemaphore(1), {"m": limit}, lambda _: 100)
        await limit.enter()
        waiting = [asyncio.create_task(as_coroutine(complete(make_request(index=i)))) for i in range(120)]
        await asyncio.sleep(0)
        limit.learn_rates({"x-ratelimit-limit-tokens": "6000"})
        begun = time.now
        limit.succeeded()
        await asyncio.gather(*waiting)
        return time.now - begun

    async def answered(request: Request) -> Completion:
        return Completion((Choice("a", "stop"),), "m", Usage(90, 10))

    assert asyncio.run(go()) == pytest.approx(114, abs=1)


def test_rates_are_learnt_from_the_headers_where_the_spec_gives_none() -> None:
    async def go(headers: dict[str, str], **rates: float) -> float:
        time = FakeClock()
        limit = make_limit(1, time, **rates)
        limit.learn_rates(headers)
        begun = time.now
        for _ in range(66):
            limit.learn_rates(headers)
            await limit.enter(lambda: 1)
            limit.succeeded()
        return time.now - begun

    allowed = {"x-ratelimit-limit-requests": "60"}
    assert asyncio.run(go(allowed)) == pytest.approx(60, abs=1)
    assert asyncio.run(go(allowed, requests_per_minute=6000)) == 0
    for odd in ("", "0", "-1", "many", "1.5", "²"):
        assert asyncio.run(go({"x-ratelimit-limit-requests": odd})) == 0


def test_a_rate_that_the_server_changes_is_taken_over() -> None:
    limit = make_limit(1)
    for allowed in ("60", "120"):
        limit.learn_rates({"x-ratelimit-limit-requests": allowed})
        assert limit._buckets["requests"].per_minute == float(allowed)


def test_tokens_that_a_call_did_not_use_are_given_back() -> None:
    """What a call may use is several times what it does use; the rate is the server's, for what is used."""

    async def go() -> float:
        time = FakeClock()
        limit = make_limit(1, time, tokens_per_minute=6000)

        async def ask(_: Request) -> Completion:
            return Completion((Choice("x", "stop"),), "tiny", Usage(90, 10))

        complete = within_limits(ask, FairSemaphore(1), {"m": limit}, lambda _: 400)
        begun = time.now
        for index in range(120):
            await complete(make_request(index=index))
        return time.now - begun

    assert asyncio.run(go()) == pytest.approx(114, rel=0.2)


# Over a real server


@pytest.mark.full
def test_the_requests_a_minute_of_the_spec_are_kept(tmp_path: Path) -> None:
    import time

    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, size=12, models={"m": {"requests_per_minute": 300}})
        begun = time.monotonic()
        run_spec(path, tmp_path / "results")
        seconds = time.monotonic() - begun
        asked = provider.stats()["chat"]
    # A burst of 27 at once, then five a second.
    assert seconds > (asked - 27) / 5 - 0.5


@pytest.mark.full
def test_the_requests_a_minute_of_the_headers_are_kept(tmp_path: Path) -> None:
    import time

    with run_batch_provider(headers={"x-ratelimit-limit-requests": "300"}) as provider:
        path = spec_file(tmp_path, provider.base_url, size=12)
        begun = time.monotonic()
        result = run_spec(path, tmp_path / "results")
        seconds = time.monotonic() - begun
        asked = provider.stats()["chat"]
    assert seconds > (asked - 30 - 8) / 5 - 0.5
    assert "allows 300 requests per minute" in result.folder.log.read_text()
