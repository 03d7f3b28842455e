"""The circuit breaker: it probes a server that is down, gives up after some probes, and closes after an answer."""

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


def make_request(number: int) -> Request:
    return Request("m", (), SampleKey(f"p{number}", 0, 0, "verifier", 0))


def unreachable_error() -> TransientError:
    return TransientError("connection refused", unreachable=True)


class Server:
    """A server behind a breaker: `failure` makes its errors, and it counts concurrent calls."""

    def __init__(self, failure: Callable[[], CallError | None]) -> None:
        self.failure = failure
        self.calls = self.concurrent = self.max_concurrent = 0
        self.waits: list[float] = []
        self.now = 100.0
        self.notices: list[str | None] = []
        self.breaker = Breaker(
            "http://somewhere", BreakerPolicy(failures=4, probes=3), TransientPolicy(jitter=0.0),
            clock=lambda: self.now,
        )  # fmt: skip
        self.breaker.add_listener(self.notices.append)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    async def complete(self, _: Request) -> Completion:
        self.calls += 1
        self.concurrent += 1
        self.max_concurrent = max(self.max_concurrent, self.concurrent)
        await asyncio.sleep(0)
        self.concurrent -= 1
        failure = self.failure()
        if failure is not None:
            raise failure
        return ANSWER

    async def ask(self, number: int) -> Completion | BaseException:
        try:
            return await self.breaker.call_in_turn(self.complete, make_request(number), self._sleep)
        except (CallError, ServerUnreachable) as error:
            return error

    def ask_all(self, count: int) -> list[Completion | BaseException]:
        async def all_at_once() -> list[Completion | BaseException]:
            return await asyncio.gather(*map(self.ask, range(count)))

        return run_sync(all_at_once)


def test_unreachable_server_is_given_up_after_the_probes() -> None:
    server = Server(unreachable_error)
    assert all(isinstance(outcome, TransientError) for outcome in server.ask_all(4))
    server.max_concurrent = 0
    outcomes = server.ask_all(100)
    assert server.calls == 4 + 3
    assert server.max_concurrent == 1
    assert sum(isinstance(outcome, ServerUnreachable) for outcome in outcomes) == 97
    assert server.waits == [0.5, 1.0, 2.0]


def test_breaker_error_names_the_server_and_the_last_failure() -> None:
    server = Server(unreachable_error)
    server.ask_all(4)
    *_, last = server.ask_all(4)
    assert str(last).startswith("cannot reach http://somewhere: 7 calls in a row failed")
    assert "connection refused" in str(last)


def test_recovered_server_is_called_concurrently_again() -> None:
    failures = iter([unreachable_error()] * 5)
    server = Server(lambda: next(failures, None))
    server.ask_all(4)
    server.max_concurrent = 0
    outcomes = server.ask_all(20)
    assert sum(outcome is ANSWER for outcome in outcomes) == 19
    assert server.max_concurrent > 1
    assert [notice is None for notice in server.notices] == [False, True]


def test_answer_between_failures_keeps_the_breaker_closed() -> None:
    failures = iter([unreachable_error(), unreachable_error(), unreachable_error(), None] * 5)
    server = Server(lambda: next(failures))
    for number in range(20):
        server.ask_all(1 + 0 * number)
    assert server.notices == []


@pytest.mark.parametrize("error", [lambda: TransientError("full", status=429), lambda: RefusedError("no")])
def test_refusals_and_rate_limits_do_not_open_the_breaker(error: Callable[[], CallError]) -> None:
    server = Server(error)
    server.ask_all(50)
    assert server.calls == 50
    assert server.notices == []


@pytest.mark.parametrize("status", [None, 500])
def test_errors_that_a_prompt_may_cause_open_the_breaker_only_across_many_prompts(status: int | None) -> None:
    few_prompts_server = Server(lambda: TransientError("reset", status=status))
    for _ in range(20):
        few_prompts_server.ask_all(3)
    assert (few_prompts_server.calls, few_prompts_server.notices) == (60, [])
    many_prompts_server = Server(lambda: TransientError("reset", status=status))
    many_prompts_server.ask_all(4)
    many_prompts_server.ask_all(50)
    assert many_prompts_server.calls == 7


def test_error_500_after_an_answer_does_not_open_the_breaker() -> None:
    failures = iter([None])
    server = Server(lambda: next(failures, TransientError("fault", status=500)))
    server.ask_all(1)
    server.ask_all(50)
    assert (server.calls, server.notices) == (51, [])


def test_connection_resets_after_refused_connections_count_as_failed_probes() -> None:
    refusals = iter([unreachable_error()] * 4)
    server = Server(lambda: next(refusals, TransientError("reset")))
    server.ask_all(4)
    server.ask_all(50)
    assert server.calls == 7


def test_probe_waits_as_long_as_the_server_asks() -> None:
    server = Server(lambda: TransientError("back soon", status=503, retry_after=60.0))
    server.ask_all(4)
    server.ask_all(50)
    assert server.waits == [60.0] * 3


@pytest.mark.parametrize("status", [502, 503, 504])
def test_gateway_errors_always_count_as_failures(status: int) -> None:
    server = Server(lambda: TransientError("bad gateway", status=status))
    for _ in range(4):
        server.ask_all(1)
    server.ask_all(50)
    assert server.calls == 7


def test_cancelled_call_passes_its_turn_to_the_next() -> None:
    server = Server(unreachable_error)
    server.ask_all(4)

    async def cancel_two_of_three() -> None:
        first = asyncio.create_task(server.ask(0))
        second = asyncio.create_task(server.ask(1))
        third = asyncio.create_task(server.ask(2))
        await asyncio.sleep(0)
        second.cancel()
        first.cancel()
        await asyncio.wait_for(third, HANG_SECONDS)

    run_sync(cancel_two_of_three)
    assert server.calls == 5
