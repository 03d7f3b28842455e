"""Retries: bounded in attempts and time, waits requested by the server first, every failed attempt reported."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import (
    CallError,
    ContextExceededError,
    NipRunError,
    ProviderRefusal,
    RefusedError,
    ServerUnreachable,
    TransientError,
)
from runner.models.call_events import CallEvents
from runner.models.interface import Choice, Completion, Request, SampleKey
from runner.models.layers.retry import stop_after_losses, with_retries
from runner.models.providers.openai_errors import retry_after
from runner.models.retry_policy import BreakerPolicy, TransientPolicy
from tests.support.event_loop import as_coroutine
from tests.support.processes import start_nip_run_silently, wait_or_kill
from tests.support.runs import journal_records, run_spec
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

REQUEST = Request("m", ({"role": "user", "content": "x"},), SampleKey("p", 0, 0, "verifier", 0))
ANSWER = Completion((Choice("x", "stop"),), "tiny")


class RetriedCall(CallEvents):
    """A call with retries over a list of outcomes, with a clock that only waits and calls advance."""

    def __init__(self, outcomes: Sequence[NipRunError | None], seconds_a_call: float = 0.0, **policy: Any) -> None:
        self.now = 100.0
        self.calls = 0
        self.waits: list[float] = []
        self.reported: list[tuple[int, str, float]] = []
        self._outcomes = list(outcomes)
        self._seconds = seconds_a_call
        self.policy = TransientPolicy(**policy)

    async def _complete(self, _: Request) -> Completion:
        self.calls += 1
        self.now += self._seconds
        outcome = self._outcomes.pop(0)
        if outcome is not None:
            raise outcome
        return ANSWER

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def on_failure(self, request: Request, attempt: int, error: CallError, wait: float) -> None:
        assert request is REQUEST
        self.reported.append((attempt, str(error), wait))

    def ask(self) -> Completion:
        complete = with_retries(
            self._complete, self.policy, self, sleep=self._sleep, clock=lambda: self.now, rng=random.Random(1)
        )
        return asyncio.run(as_coroutine(complete(REQUEST)))


def make_failures(count: int, **more: Any) -> list[NipRunError | None]:
    return [TransientError(f"failure {index}", **more) for index in range(1, count + 1)]


def test_immediate_answer_is_returned_without_waits_or_reports() -> None:
    retried = RetriedCall([None])
    assert retried.ask() == ANSWER
    assert (retried.calls, retried.waits, retried.reported) == (1, [], [])


def test_transient_failure_is_retried_and_reported() -> None:
    retried = RetriedCall([*make_failures(2), None])
    assert retried.ask() == ANSWER
    assert [(attempt, error) for attempt, error, _ in retried.reported] == [(1, "failure 1"), (2, "failure 2")]
    assert [wait for _, _, wait in retried.reported] == retried.waits


@pytest.mark.parametrize("attempts", [1, 2, 8])
def test_attempts_are_bounded_and_the_last_failure_is_raised(attempts: int) -> None:
    retried = RetriedCall(make_failures(20), attempts=attempts, total_seconds=1e9)
    with pytest.raises(TransientError, match=f"failure {attempts}$"):
        retried.ask()
    assert retried.calls == len(retried.reported) == attempts
    assert len(retried.waits) == attempts - 1
    assert retried.reported[-1][2] < 0


def test_total_time_of_calls_and_waits_is_bounded() -> None:
    retried = RetriedCall(
        make_failures(50), seconds_a_call=10.0, attempts=50, total_seconds=60.0, first_wait=5.0, factor=1.0
    )
    with pytest.raises(TransientError):
        retried.ask()
    assert 3 <= retried.calls <= 6
    assert retried.now - 100.0 <= 60.0 + 2 * 10.0  # the first and the last call are not waits


@pytest.mark.parametrize("wait", [0.25, 7.0, 120.0])
def test_requested_wait_is_respected_beyond_max_wait(wait: float) -> None:
    retried = RetriedCall([*make_failures(1, retry_after=wait), None], max_wait=1.0)
    retried.ask()
    assert retried.waits == [wait]


def test_retry_after_of_zero_uses_the_policys_wait() -> None:
    retried = RetriedCall([*make_failures(1, retry_after=0.0), None], first_wait=1.0, jitter=0.0)
    retried.ask()
    assert retried.waits == [1.0]


def test_wait_beyond_the_total_time_is_not_started() -> None:
    retried = RetriedCall(make_failures(5, retry_after=3600.0), total_seconds=900.0)
    with pytest.raises(TransientError):
        retried.ask()
    assert (retried.calls, retried.waits) == (1, [])


def lose(outcomes: Sequence[NipRunError | None], group: str = "m") -> list[type[BaseException] | None]:
    """Return the error of each call, if the run stops after 3 lost calls of the group `m` in a row."""
    remaining = list(outcomes)

    async def complete(_: Request) -> Completion:
        outcome = remaining.pop(0)
        if outcome is not None:
            raise outcome
        return ANSWER

    async def call_all() -> list[type[BaseException] | None]:
        call = stop_after_losses(complete, 3, {"m": "http://somewhere"})
        errors: list[type[BaseException] | None] = []
        for _ in outcomes:
            try:
                await call(replace(REQUEST, group=group))
            except (CallError, ServerUnreachable) as error:
                errors.append(type(error))
            else:
                errors.append(None)
        return errors

    return asyncio.run(call_all())


def test_many_lost_calls_in_a_row_stop_the_run() -> None:
    assert lose(make_failures(4)) == [TransientError, TransientError, ServerUnreachable, ServerUnreachable]


@pytest.mark.parametrize("answer", [None, RefusedError("no"), ContextExceededError("too long")])
def test_any_answer_between_lost_calls_lets_the_run_continue(answer: NipRunError | None) -> None:
    failures = make_failures(4)
    errors = lose([*failures[:2], answer, *failures[2:]])
    assert ServerUnreachable not in errors
    assert errors.count(TransientError) == 4


def test_lost_calls_of_other_groups_do_not_stop_the_run() -> None:
    assert lose(make_failures(9), group="batch") == [TransientError] * 9


@pytest.mark.gate
def test_server_whose_quota_is_used_up_gets_no_request_for_each_game(tmp_path: Path) -> None:
    with run_chat_server(kind="rate_limit_seconds", retry_after=86_400.0) as server:
        path = spec_file(tmp_path, server.base_url, size=60, rollouts={"concurrency": 1})
        with pytest.raises(ServerUnreachable) as error:
            run_spec(path, tmp_path / "results")
        assert server.stats()["kinds"]["rate_limit_seconds"] == BreakerPolicy().failures
    assert server.base_url in str(error.value)
    assert "429" in str(error.value)
    assert "wait of 86,400 s" in str(error.value)


@pytest.mark.parametrize("error", [ProviderRefusal("x"), ContextExceededError("x"), RefusedError("x")])
def test_permanent_error_is_not_retried(error: NipRunError) -> None:
    retried = RetriedCall([error, None])
    with pytest.raises(type(error)):
        retried.ask()
    assert (retried.calls, retried.reported) == (1, [])


def test_waits_of_the_policy_grow_by_the_factor_up_to_max_wait() -> None:
    policy = TransientPolicy(first_wait=0.5, factor=2.0, max_wait=6.0, jitter=0.0)
    rng = random.Random(0)
    assert [policy.wait(attempt, rng) for attempt in range(1, 8)] == [0.5, 1.0, 2.0, 4.0, 6.0, 6.0, 6.0]


@pytest.mark.parametrize("jitter", [0.0, 0.3, 1.0])
def test_jitter_shortens_a_wait_by_at_most_its_share(jitter: float) -> None:
    rng = random.Random(0)
    for attempt in range(1, 12):
        policy = TransientPolicy(first_wait=0.1, factor=3.0, max_wait=20.0, jitter=jitter)
        full_wait = TransientPolicy(first_wait=0.1, factor=3.0, max_wait=20.0, jitter=0.0).wait(attempt, rng)
        for _ in range(200):
            assert full_wait * (1 - jitter) - 1e-12 <= policy.wait(attempt, rng) <= full_wait


def test_jitter_spreads_the_retries_of_calls_that_failed_together() -> None:
    policy = TransientPolicy()
    rng = random.Random(0)
    assert len({policy.wait(1, rng) for _ in range(100)}) == 100


def test_wait_after_many_attempts_does_not_overflow() -> None:
    assert TransientPolicy(jitter=0.0).wait(100_000, random.Random(0)) == 30.0


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({"retry-after": "2"}, 2.0), ({"retry-after-ms": "250"}, 0.25), ({"retry-after": "-5"}, 0.0), ({}, None),
        ({"retry-after": "soon"}, None), ({"retry-after-ms": "soon"}, None),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0), ({"retry-after": ""}, None),
        ({"retry-after": "inf"}, None), ({"retry-after": "nan"}, None), ({"retry-after": "1e400"}, None),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:00 GMT"}, 50.0),
        ({"retry-after": "Thu, 99 Foo 1970 00:01:00 GMT"}, None),
        ({"retry-after": "Mon, 01 Jan 99999999999999999999 00:00:00 GMT"}, None),
        ({"retry-after": "Mon, 01 Jan 1970 00:00:00 +99999999999999999999"}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "9" * 400}, None),
        ({"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"}, 90.0),
        ({"x-ratelimit-remaining-tokens": "5", "x-ratelimit-reset-tokens": "6s"}, None),
    ],
)  # fmt: skip
def test_retry_after_is_read_from_valid_headers_only(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(headers, now=10.0) == seconds


@pytest.mark.gate
def test_run_waits_as_long_as_the_server_asks_and_records_the_wait(tmp_path: Path) -> None:
    with run_chat_server(faults={"rate_limit_seconds": 0.2}, retry_after=0.3) as server:
        path = spec_file(tmp_path, server.base_url, size=4)
        result = run_spec(path, tmp_path / "results")
        failed_calls = server.stats()["kinds"]["rate_limit_seconds"]
    records = [r for r in journal_records(result.folder.path) if r["kind"] == "failure"]
    assert len(records) == failed_calls > 0
    assert {record["wait"] for record in records} == {0.3}
    assert all("429" in record["error"] for record in records)
    assert result.metrics["outcomes"]["decided"] == 4


@pytest.mark.full
def test_requested_hour_of_waiting_does_not_exceed_the_total_time(tmp_path: Path) -> None:
    """Calls that wait behind the first one are abandoned, too: none of them could be made in time."""

    with run_chat_server(kind="rate_limit_seconds", retry_after=3600.0) as server:
        path = spec_file(
            tmp_path, server.base_url, size=4, rollouts={"concurrency": 1}, retry={"transient": {"total_seconds": 1.0}},
        )  # fmt: skip
        code = wait_or_kill(start_nip_run_silently(path, "-q", cwd=tmp_path))  # long before the hour is over
    assert code is not None
