"""How many calls a group makes at once: more while all goes well, fewer when the server says so."""

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


@pytest.mark.parametrize(("most", "first"), [(1, 1), (4, 4), (8, 8), (16, 8), (64, 16), (256, 64)])
def test_it_starts_with_a_quarter_or_a_handful(most: int, first: int) -> None:
    assert int(make_limit(most).limit) == first


async def rounds_under_load(limit: GroupLimit, count: int, *, together: bool) -> list[int]:
    """How many were in flight in each of `count` round trips, with many more calls waiting all the time."""
    waiting = [asyncio.create_task(limit.enter()) for _ in range(2000)]
    found = []
    for _ in range(count):
        await settle()
        found.append(limit._in_flight)
        for _ in range(found[-1]):
            limit.succeeded()
            if not together:
                await settle()
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    return found


@pytest.mark.parametrize("together", [False, True])
def test_it_doubles_with_each_full_round_trip_up_to_the_concurrency(together: bool) -> None:
    """Also where the answers of a round trip come in one moment, as from a server of constant latency."""
    counts = asyncio.run(rounds_under_load(make_limit(100), 4, together=together))
    assert counts[0] == 25
    assert counts[1] > 40
    assert counts[-1] == 100


def test_it_does_not_grow_while_it_is_not_full() -> None:
    async def go() -> float:
        limit = make_limit(100)
        for _ in range(200):
            await limit.enter()
            limit.succeeded()
        return limit.limit

    assert asyncio.run(go()) == 25


def test_it_shrinks_once_in_a_cool_down_however_many_429_come() -> None:
    async def go() -> tuple[float, float, float]:
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

    first, second, third = asyncio.run(go())
    assert first == second == pytest.approx(20)
    assert third == pytest.approx(16)


def after(limit: GroupLimit, share: float, calls: int) -> float:
    """The limit after so many calls while it was full, of which the server refused a share, evenly spread."""

    async def go() -> float:
        refused = 0.0
        while limit._in_flight < int(limit.limit):
            await limit.enter()
        for _ in range(calls):
            refused += share
            if refused >= 1:
                refused -= 1
                limit.failed(RATE_LIMIT_ERROR)
            else:
                limit.succeeded()
            while limit._in_flight < int(limit.limit):
                await limit.enter()
        return limit.limit

    return asyncio.run(go())


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_single_refusals_do_not_lower_the_limit_again_and_again(share: float) -> None:
    time = FakeClock()
    limit = make_limit(64, time)
    assert after(limit, share, 300) == 64
    for _ in range(20):
        time.now += COOLDOWN_SECONDS
        assert after(limit, share, 100) >= 64 * SHRINK


def test_every_third_call_refused_lowers_the_limit_in_each_cooldown() -> None:
    time = FakeClock()
    limit = make_limit(64, time)
    found = [after(limit, 1 / 3, 100)]
    for _ in range(5):
        time.now += COOLDOWN_SECONDS
        found.append(after(limit, 1 / 3, 100))
    assert found == sorted(found, reverse=True)
    assert found[-1] < found[0] / 2


def test_it_never_shrinks_below_one() -> None:
    async def go() -> float:
        time = FakeClock()
        limit = make_limit(4, time)
        for _ in range(50):
            await fill_and_empty(limit, RATE_LIMIT_ERROR)
            time.now += 100
        return limit.limit

    assert asyncio.run(go()) == 1


@pytest.mark.parametrize("together", [False, True])
def test_after_a_429_it_grows_by_one_a_round_trip(together: bool) -> None:
    async def go() -> list[int]:
        time = FakeClock()
        limit = make_limit(100, time)
        await fill_and_empty(limit, RATE_LIMIT_ERROR)
        time.now += COOLDOWN_SECONDS + 1
        return await rounds_under_load(limit, 10, together=together)

    counts = asyncio.run(go())
    assert counts[0] == 20
    assert all(0 <= later - earlier <= 2 for earlier, later in itertools.pairwise(counts))
    assert 26 <= counts[-1] <= 31


def test_it_recovers_from_one() -> None:
    async def go() -> float:
        time = FakeClock()
        limit = make_limit(8, time)
        for _ in range(20):
            await fill_and_empty(limit, RATE_LIMIT_ERROR)
            time.now += 100
        for _ in range(20):
            await fill_and_empty(limit)
        return limit.limit

    assert asyncio.run(go()) > 4


@pytest.mark.parametrize(
    "error", [TransientError("500", status=500), TransientError("cut off"), ContextExceededError("x")]
)
def test_other_failures_do_not_shrink_it(error: Exception) -> None:
    async def go() -> float:
        limit = make_limit(100)
        await fill_and_empty(limit, error)
        return limit.limit

    assert asyncio.run(go()) == 25


def test_a_429_holds_the_whole_group_back_for_as_long_as_the_server_asks() -> None:
    async def go() -> tuple[float, float]:
        time = FakeClock()
        limit = make_limit(8, time)
        await limit.enter()
        begun = time.now
        limit.failed(TransientError("429", status=429, retry_after=7.5))
        await limit.enter()
        held = time.now - begun
        limit.succeeded()
        await limit.enter()
        return held, time.now - begun - held

    held, again = asyncio.run(go())
    assert held == pytest.approx(7.5)
    assert again == 0


@pytest.mark.full
def test_what_it_did_is_in_the_log_of_the_run(tmp_path: Path) -> None:
    with run_chat_server(faults={"rate_limit": 0.3}, max_faults=1, latency=0.01) as server:
        result = run_spec(spec_file(tmp_path, server.base_url, rollouts={"concurrency": 12}), tmp_path / "results")
    text = result.folder.log.read_text()
    assert "m: 429, down to" in text


# Over a real server


@pytest.mark.full
def test_a_server_that_takes_few_calls_at_once_is_learnt_and_answers_all(tmp_path: Path) -> None:
    with run_batch_provider(most_at_once=5, latency=0.01) as provider:
        path = spec_file(
            tmp_path, provider.base_url, size=24, rollouts={"concurrency": 24},
            retry={"transient": {"attempts": 30, "first_wait": 0.02, "max_wait": 0.2}},
        )  # fmt: skip
        result = run_spec(path, tmp_path / "results")
        stats = provider.stats()
        provider.change(most_at_once=None)
        calm = run_spec(path, tmp_path / "calm")
    assert stats["kinds"]["too_many"] > 0
    assert result.metrics["outcomes"]["decided"] == 24
    assert stats["billed"]["answers"] == calm.manifest.completions
    assert derived_files(result.folder.path) == derived_files(calm.folder.path)
