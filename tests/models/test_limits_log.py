"""The run's log reports changes of the adaptive limit in a few lines."""

from __future__ import annotations

import asyncio
import logging
import re
from pathlib import Path

import pytest

from runner.base.errors import TransientError
from runner.models.layers.limits import COOLDOWN_SECONDS, GroupLimit
from tests.support.runs import run_spec
from tests.support.servers.batch_client import run_batch_provider
from tests.support.specs import spec_file

TOO_MANY_REQUESTS = TransientError("429", status=429)


class LimitedGroup:
    """The limit of one group, with a clock that moves only when it is set."""

    def __init__(self, max_calls: int) -> None:
        self.now = 0.0
        self.limit = GroupLimit("m", max_calls, clock=lambda: self.now)

    def answer_rounds(self, rounds: int = 1) -> None:
        """Answer `rounds` round trips, each with as many calls as the limit allows."""

        async def answer_round() -> None:
            count = int(self.limit.limit)
            for _ in range(count):
                await self.limit.enter()
            for _ in range(count):
                self.limit.succeeded()

        for _ in range(rounds):
            asyncio.run(answer_round())

    def refuse_call(self) -> None:
        """Report one 429 and let the cooldown pass."""
        asyncio.run(self.limit.enter())
        self.limit.failed(TOO_MANY_REQUESTS)
        self.now += COOLDOWN_SECONDS + 1


def logged_messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_growth_is_logged_at_each_doubling_and_at_the_maximum(caplog: pytest.LogCaptureFixture) -> None:
    group = LimitedGroup(20)
    group.limit.limit, group.limit._logged_limit = 3.0, 3
    with caplog.at_level(logging.INFO, "nip_run.limits"):
        group.answer_rounds(rounds=40)
    assert logged_messages(caplog) == [
        "m: up to 6 calls at once", "m: up to 12 calls at once",
        "m: 20 calls at once, all that rollouts.concurrency allows",
    ]  # fmt: skip


def test_growth_after_a_429_is_logged_at_each_doubling_of_the_reduced_limit(caplog: pytest.LogCaptureFixture) -> None:
    group = LimitedGroup(1000)  # starts at 250
    for _ in range(18):
        group.refuse_call()
    assert int(group.limit.limit) == 4
    with caplog.at_level(logging.INFO, "nip_run.limits"):
        group.refuse_call()
        group.answer_rounds(rounds=75)
    messages = logged_messages(caplog)
    assert messages == ["m: 429, down to 3 calls at once", "m: up to 6 calls at once", "m: up to 12 calls at once"]


def test_limit_that_varies_within_a_factor_of_two_logs_only_its_429s(caplog: pytest.LogCaptureFixture) -> None:
    group = LimitedGroup(1000)
    group.refuse_call()
    with caplog.at_level(logging.INFO, "nip_run.limits"):
        for _ in range(10):
            group.answer_rounds(rounds=20)
            group.refuse_call()
    messages = logged_messages(caplog)
    assert len(messages) == 10
    assert all("429, down to" in line for line in messages)


@pytest.mark.full
def test_log_reports_the_number_of_concurrent_calls(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.05) as provider:
        path = spec_file(tmp_path, provider.base_url, size=150, rollouts={"concurrency": 32})
        text = run_spec(path, tmp_path / "results").folder.log.read_text()
    limits = [int(count) for count in re.findall(r"nip_run\.limits m: (?:up to )?(\d+) calls at once", text)]
    assert limits == [16, 32]  # from 8
