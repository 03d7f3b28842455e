"""The adaptive concurrency limit: it grows while calls succeed and shrinks when the server sends 429."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest

from runner.base.errors import ContextExceededError, TransientError
from runner.models.layers.limits import COOLDOWN_SECONDS, SHRINK, GroupLimit
from tests.support.event_loop import settle
from tests.support.rate_limits import RATE_LIMIT_ERROR, FakeClock, fill_and_empty, make_limit
from tests.support.runs import derived_files, run_spec
from tests.support.servers.batch_client import run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

# The adaptive limit


@pytest.mark.parametrize(("concurrency", "expected"), [(1, 1), (4, 4), (8, 8), (16, 8), (64, 16), (256, 64)])
def test_limit_starts_at_a_quarter_of_the_concurrency_or_at_eight(concurrency: int, expected: int) -> None:
    assert int(make_limit(concurrency).limit) == expected


async def run_rounds_under_load(limit: GroupLimit, count: int, *, together: bool) -> list[int]:
    """Return the calls in flight in each of `count` round trips, while many more calls wait."""
    waiting = [asyncio.create_task(limit.enter()) for _ in range(2000)]
    in_flight = []
    for _ in range(count):
        await settle()
        in_flight.append(limit._in_flight)
        for _ in range(in_flight[-1]):
            limit.succeeded()
            if not together:
                await settle()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return in_flight


@pytest.mark.parametrize("together", [False, True])
def test_limit_doubles_with_each_full_round_trip_up_to_the_concurrency(together: bool) -> None:
    """All answers of a round trip arrive at once if `together` is true."""
    counts = asyncio.run(run_rounds_under_load(make_limit(100), 4, together=together))
    assert counts[0] == 25
    assert counts[1] > 40
    assert counts[-1] == 100


def test_limit_does_not_grow_while_it_is_not_used_up() -> None:
    async def run_calls() -> float:
        limit = make_limit(100)
        for _ in range(200):
            await limit.enter()
            limit.succeeded()
        return limit.limit

    assert asyncio.run(run_calls()) == 25


def test_limit_shrinks_once_per_cooldown_despite_many_429s() -> None:
    async def run_calls() -> tuple[float, float, float]:
        time = FakeClock()
        limit = make_limit(100, time)
        await fill_and_empty(limit, RATE_LIMIT_ERROR)
        first = limit.limit
        time.now += COOLDOWN_SECONDS - 0.1
        await fill_and_empty(limit, RATE_LIMIT_ERROR)
        second = limit.limit
        time.now += 0.2
        await fill_and_empty(limit, RATE_LIMIT_ERROR)
        return first, second, limit.limit

    first, second, third = asyncio.run(run_calls())
    assert first == second == pytest.approx(20)
    assert third == pytest.approx(16)


def limit_after_calls(limit: GroupLimit, share: float, calls: int) -> float:
    """Return the limit after `calls` calls at full load; the server answers this share of them with 429."""

    async def run_calls() -> float:
        pending_refusals = 0.0
        while limit._in_flight < int(limit.limit):
            await limit.enter()
        for _ in range(calls):
            pending_refusals += share
            if pending_refusals >= 1:
                pending_refusals -= 1
                limit.failed(RATE_LIMIT_ERROR)
            else:
                limit.succeeded()
            while limit._in_flight < int(limit.limit):
                await limit.enter()
        return limit.limit

    return asyncio.run(run_calls())


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_rare_429s_do_not_shrink_the_limit_repeatedly(share: float) -> None:
    time = FakeClock()
    limit = make_limit(64, time)
    assert limit_after_calls(limit, share, 300) == 64
    for _ in range(20):
        time.now += COOLDOWN_SECONDS
        assert limit_after_calls(limit, share, 100) >= 64 * SHRINK


def test_frequent_429s_shrink_the_limit_in_each_cooldown() -> None:
    time = FakeClock()
    limit = make_limit(64, time)
    limits = [limit_after_calls(limit, 1 / 3, 100)]
    for _ in range(5):
        time.now += COOLDOWN_SECONDS
        limits.append(limit_after_calls(limit, 1 / 3, 100))
    assert limits == sorted(limits, reverse=True)
    assert limits[-1] < limits[0] / 2


def test_limit_never_shrinks_below_one() -> None:
    async def run_calls() -> float:
        time = FakeClock()
        limit = make_limit(4, time)
        for _ in range(50):
            await fill_and_empty(limit, RATE_LIMIT_ERROR)
            time.now += 100
        return limit.limit

    assert asyncio.run(run_calls()) == 1


@pytest.mark.parametrize("together", [False, True])
def test_limit_grows_by_one_per_round_trip_after_a_429(together: bool) -> None:
    async def run_calls() -> list[int]:
        time = FakeClock()
        limit = make_limit(100, time)
        await fill_and_empty(limit, RATE_LIMIT_ERROR)
        time.now += COOLDOWN_SECONDS + 1
        return await run_rounds_under_load(limit, 10, together=together)

    counts = asyncio.run(run_calls())
    assert counts[0] == 20
    assert all(0 <= later - earlier <= 2 for earlier, later in itertools.pairwise(counts))
    assert 26 <= counts[-1] <= 31


def test_limit_recovers_from_one() -> None:
    async def run_calls() -> float:
        time = FakeClock()
        limit = make_limit(8, time)
        for _ in range(20):
            await fill_and_empty(limit, RATE_LIMIT_ERROR)
            time.now += 100
        for _ in range(20):
            await fill_and_empty(limit)
        return limit.limit

    assert asyncio.run(run_calls()) > 4


@pytest.mark.parametrize(
    "error", [TransientError("500", status=500), TransientError("cut off"), ContextExceededError("x")]
)
def test_other_failures_do_not_shrink_the_limit(error: Exception) -> None:
    async def run_calls() -> float:
        limit = make_limit(100)
        await fill_and_empty(limit, error)
        return limit.limit

    assert asyncio.run(run_calls()) == 25


def test_retry_after_of_a_429_delays_all_calls_of_the_group() -> None:
    async def run_calls() -> tuple[float, float]:
        time = FakeClock()
        limit = make_limit(8, time)
        await limit.enter()
        started = time.now
        limit.failed(TransientError("429", status=429, retry_after=7.5))
        await limit.enter()
        waited = time.now - started
        limit.succeeded()
        await limit.enter()
        return waited, time.now - started - waited

    waited, second_wait = asyncio.run(run_calls())
    assert waited == pytest.approx(7.5)
    assert second_wait == 0


@pytest.mark.full
def test_run_log_reports_the_lowered_limit(tmp_path: Path) -> None:
    with run_chat_server(faults={"rate_limit": 0.3}, max_faults=1, latency=0.01) as server:
        result = run_spec(spec_file(tmp_path, server.base_url, rollouts={"concurrency": 12}), tmp_path / "results")
    text = result.folder.log.read_text()
    assert "m: 429, down to" in text


# With a local server


@pytest.mark.full
def test_limit_adapts_to_a_server_with_few_concurrent_calls_and_all_calls_are_answered(tmp_path: Path) -> None:
    with run_batch_provider(most_at_once=5, latency=0.01) as provider:
        path = spec_file(
            tmp_path, provider.base_url, size=24, rollouts={"concurrency": 24},
            retry={"transient": {"attempts": 30, "first_wait": 0.02, "max_wait": 0.2}},
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
        stats = provider.stats()
        provider.change(most_at_once=None)
        unlimited = run_spec(path, tmp_path / "calm")
    assert stats["kinds"]["too_many"] > 0
    assert result.metrics["outcomes"]["decided"] == 24
    assert stats["billed"]["answers"] == unlimited.manifest.completions
    assert derived_files(result.folder.path) == derived_files(unlimited.folder.path)
