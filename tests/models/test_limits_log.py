"""The run's log says what the adaptive limit did, in few lines."""

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

TOO_MANY = TransientError("429", status=429)


class Group:
    """One group's limit with a clock that stands still until it is set."""

    def __init__(self, most: int) -> None:
        self.now = 0.0
        self.limit = GroupLimit("m", most, clock=lambda: self.now)

    def answered(self, rounds: int = 1) -> None:
        """So many round trips with the limit full, all answered."""

        async def one() -> None:
            count = int(self.limit.limit)
            for _ in range(count):
                await self.limit.enter()
            for _ in range(count):
                self.limit.succeeded()

        for _ in range(rounds):
            asyncio.run(one())

    def refused(self) -> None:
        """One 429, and the time after which the limit may move again."""
        asyncio.run(self.limit.enter())
        self.limit.failed(TOO_MANY)
        self.now += COOLDOWN_SECONDS + 1


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


def test_growth_is_logged_at_each_doubling_and_at_the_most(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(20)
    group.limit.limit, group.limit._logged_limit = 3.0, 3
    with caplog.at_level(logging.INFO, "nip_run.limits"):
        group.answered(rounds=40)
    assert lines(caplog) == [
        "m: up to 6 calls at once", "m: up to 12 calls at once",
        "m: 20 calls at once, all that rollouts.concurrency allows",
    ]  # fmt: skip


def test_growth_after_a_429_is_logged_from_where_it_shrank_to(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(1000)  # starts at 250
    for _ in range(18):
        group.refused()
    assert int(group.limit.limit) == 4
    with caplog.at_level(logging.INFO, "nip_run.limits"):
        group.refused()
        group.answered(rounds=75)
    said = lines(caplog)
    assert said == ["m: 429, down to 3 calls at once", "m: up to 6 calls at once", "m: up to 12 calls at once"]


def test_a_limit_that_swings_within_a_factor_of_two_logs_its_429s_alone(caplog: pytest.LogCaptureFixture) -> None:
    group = Group(1000)
    group.refused()
    with caplog.at_level(logging.INFO, "nip_run.limits"):
        for _ in range(10):
            group.answered(rounds=20)
            group.refused()
    said = lines(caplog)
    assert len(said) == 10
    assert all("429, down to" in line for line in said)


@pytest.mark.full
def test_the_log_says_how_many_calls_were_allowed_at_once(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.05) as provider:
        path = spec_file(tmp_path, provider.base_url, size=150, rollouts={"concurrency": 32})
        text = run_spec(path, tmp_path / "results").folder.log.read_text()
    said = [int(count) for count in re.findall(r"nip_run\.limits m: (?:up to )?(\d+) calls at once", text)]
    assert said == [16, 32]  # from 8
