"""A server that is down is asked by one call at a time, and then by none; one that is up again is asked as before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from runner.base.async_runner import run_sync
from runner.base.errors import CallError, RefusedError, ServerUnreachable, TransientError
from runner.models.interface import Choice, Completion, Request, SampleKey
from runner.models.layers.breaker import Breaker
from runner.models.retry_policy import BreakerPolicy, TransientPolicy
from tests.support.hang_guard import HANG_SECONDS

ANSWER = Completion((Choice("x", "stop"),), "tiny")


def request(number: int) -> Request:
    return Request("m", (), SampleKey(f"p{number}", 0, 0, "verifier", 0))


def unreachable() -> TransientError:
    return TransientError("connection refused", unreachable=True)


class Server:
    """What a breaker guards: fails with what `failure` gives, and counts how many calls are with it at once."""

    def __init__(self, failure: Callable[[], CallError | None]) -> None:
        self.failure = failure
        self.calls = self.at_once = self.most = 0
        self.waits: list[float] = []
        self.now = 100.0
        self.told: list[str | None] = []
        self.breaker = Breaker(
            "http://somewhere", BreakerPolicy(failures=4, probes=3), TransientPolicy(jitter=0.0),
            sleep=self._sleep, clock=lambda: self.now,
        )  # fmt: skip
        self.breaker.add_listener(self.told.append)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    async def complete(self, _: Request) -> Completion:
        self.calls += 1
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await asyncio.sleep(0)
        self.at_once -= 1
        failure = self.failure()
        if failure is not None:
            raise failure
        return ANSWER

    async def ask(self, number: int) -> Completion | BaseException:
        try:
            return await self.breaker.call_in_turn(self.complete, request(number))
        except (CallError, ServerUnreachable) as error:
            return error

    def ask_all(self, count: int) -> list[Completion | BaseException]:
        async def all_at_once() -> list[Completion | BaseException]:
            return await asyncio.gather(*map(self.ask, range(count)))

        return run_sync(all_at_once)


def test_a_server_that_is_down_is_given_up_after_the_probes() -> None:
    server = Server(unreachable)
    assert all(isinstance(end, TransientError) for end in server.ask_all(4))
    server.most = 0
    ends = server.ask_all(100)
    assert server.calls == 4 + 3
    assert server.most == 1
    assert sum(isinstance(end, ServerUnreachable) for end in ends) == 97
    assert server.waits == [0.5, 1.0, 2.0]


def test_the_error_names_the_server_and_the_last_failure() -> None:
    server = Server(unreachable)
    server.ask_all(4)
    *_, last = server.ask_all(4)
    assert str(last).startswith("cannot reach http://somewhere: 7 calls in a row failed")
    assert "connection refused" in str(last)


def test_a_server_that_comes_back_is_asked_by_all_again() -> None:
    failures = iter([unreachable()] * 5)
    server = Server(lambda: next(failures, None))
    server.ask_all(4)
    server.most = 0
    ends = server.ask_all(20)
    assert sum(end is ANSWER for end in ends) == 19
    assert server.most > 1
    assert [told is None for told in server.told] == [False, True]


def test_an_answer_between_the_failures_keeps_the_breaker_closed() -> None:
    failures = iter([unreachable(), unreachable(), unreachable(), None] * 5)
    server = Server(lambda: next(failures))
    for number in range(20):
        server.ask_all(1 + 0 * number)
    assert server.told == []


@pytest.mark.parametrize("error", [lambda: TransientError("full", status=429), lambda: RefusedError("no")])
def test_a_server_that_says_no_is_up(error: Callable[[], CallError]) -> None:
    server = Server(error)
    server.ask_all(50)
    assert server.calls == 50
    assert server.told == []


@pytest.mark.parametrize("status", [None, 500])
def test_what_a_prompt_may_cause_says_so_only_of_many_different_ones(status: int | None) -> None:
    few = Server(lambda: TransientError("reset", status=status))
    for _ in range(20):
        few.ask_all(3)
    assert (few.calls, few.told) == (60, [])
    many = Server(lambda: TransientError("reset", status=status))
    many.ask_all(4)
    many.ask_all(50)
    assert many.calls == 7


def test_a_500_of_a_server_that_has_answered_is_of_one_that_is_up() -> None:
    failures = iter([None])
    server = Server(lambda: next(failures, TransientError("fault", status=500)))
    server.ask_all(1)
    server.ask_all(50)
    assert (server.calls, server.told) == (51, [])


def test_a_server_that_resets_after_it_refused_is_given_up_too() -> None:
    refused = iter([unreachable()] * 4)
    server = Server(lambda: next(refused, TransientError("reset")))
    server.ask_all(4)
    server.ask_all(50)
    assert server.calls == 7


def test_a_probe_waits_as_long_as_the_server_asks() -> None:
    server = Server(lambda: TransientError("back soon", status=503, retry_after=60.0))
    server.ask_all(4)
    server.ask_all(50)
    assert server.waits == [60.0] * 3


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_gateway_that_reaches_no_server_counts_always(status: int) -> None:
    server = Server(lambda: TransientError("bad gateway", status=status))
    for _ in range(4):
        server.ask_all(1)
    server.ask_all(50)
    assert server.calls == 7


def test_a_call_that_is_cancelled_in_its_turn_gives_it_on() -> None:
    server = Server(unreachable)
    server.ask_all(4)

    async def cancelled_then_asked() -> None:
        first = asyncio.create_task(server.ask(0))
        second = asyncio.create_task(server.ask(1))
        third = asyncio.create_task(server.ask(2))
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        await asyncio.wait_for(third, HANG_SECONDS)

    run_sync(cancelled_then_asked)
    assert server.calls == 5
