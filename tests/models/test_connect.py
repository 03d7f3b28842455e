"""The layers between a game and a provider, assembled for each group."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from runner.base.errors import TransientError
from runner.models.admission import LocalAdmission
from runner.models.call_events import CallEvents
from runner.models.client import ModelConnector
from runner.models.costs import CallCosts
from runner.models.interface import Choice, Completion, Request, SampleKey
from runner.models.layers.budget import Budget, BudgetSettings
from runner.models.retry_policy import Retry, TransientPolicy
from runner.models.server_states import Servers
from runner.models.settings import ModelSettings
from runner.models.usage_totals import UsageTotals
from tests.support.event_loop import as_coroutine

URL = "http://127.0.0.1:9/v1"
GROUPS = {
    "live": ModelSettings(model="tiny", base_url=URL, requests_per_minute=60),
    "batch": ModelSettings(model="tiny", base_url=URL, batch=True),
    "offline": ModelSettings(provider="dummy"),
}
POLICY = Retry(transient=TransientPolicy(attempts=3, first_wait=0.0))


class FlakyProvider:
    """A provider that fails once, and then answers."""

    def __init__(self) -> None:
        self.call_count = 0

    async def complete(self, request: Request) -> Completion:
        del request
        self.call_count += 1
        if self.call_count == 1:
            raise TransientError("busy", status=503)
        return Completion((Choice("x", "stop"),), "tiny")

    async def close(self) -> None:
        pass


def make_request(group: str) -> Request:
    return Request(group, ({"role": "user", "content": "x"},), SampleKey("p", 0, 0, "verifier", 0))


class BusyProvider:
    """A provider that never answers."""

    def __init__(self) -> None:
        self.waiting = 0

    async def complete(self, request: Request) -> Completion:
        del request
        self.waiting += 1
        await asyncio.sleep(3600)
        raise AssertionError

    async def close(self) -> None:
        pass


@pytest.mark.parametrize(("group", "at_once"), [("live", 8), ("batch", 20), ("offline", 20)])
def test_only_groups_with_live_calls_have_a_concurrency_limit(group: str, at_once: int) -> None:
    groups = {**GROUPS, "live": replace(GROUPS["live"], requests_per_minute=None)}

    async def waiting() -> int:
        provider = BusyProvider()
        complete = ModelConnector(groups, POLICY, Servers(12)).connect(dict.fromkeys(groups, provider)).complete
        calls = [asyncio.create_task(as_coroutine(complete(make_request(group)))) for _ in range(20)]
        for _ in range(10):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return provider.waiting

    assert asyncio.run(waiting()) == at_once


def test_groups_on_one_server_share_its_concurrency_limit_and_circuit_breaker() -> None:
    groups = {"live": replace(GROUPS["live"], requests_per_minute=None)}
    renamed_groups = {"other": groups["live"]}

    async def waiting() -> tuple[int, int]:
        provider, servers = BusyProvider(), Servers(12)
        connections = [
            ModelConnector(connection_groups, POLICY, servers).connect(dict.fromkeys(connection_groups, provider))
            for connection_groups in (groups, groups, renamed_groups)
        ]
        names = ("live", "live", "other")
        calls = [
            asyncio.create_task(as_coroutine(connection.complete(make_request(name))))
            for connection, name in zip(connections, names, strict=True)
            for _ in range(20)
        ]
        for _ in range(10):
            await asyncio.sleep(0)
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        return provider.waiting, len({servers.breaker(URL, POLICY) for _ in range(2)})

    assert asyncio.run(waiting()) == (8, 1)


def test_connected_group_respects_its_requests_per_minute() -> None:
    waits: list[float] = []

    async def sleep(seconds: float) -> None:
        waits.append(seconds)

    async def complete_six_calls() -> None:
        provider = FlakyProvider()
        provider.call_count = 1  # skips the failure of the first call
        complete = ModelConnector(GROUPS, POLICY, sleep=sleep).connect(dict.fromkeys(GROUPS, provider)).complete
        for _ in range(6):
            await complete(make_request("live"))

    asyncio.run(complete_six_calls())
    assert waits == [pytest.approx(0.5, abs=0.4)]  # 60 per minute, with a burst of 5.5


@pytest.mark.parametrize(("group", "expected_calls"), [("live", 2), ("batch", 2), ("offline", 1)])
def test_transient_failures_are_retried_only_for_network_providers(group: str, expected_calls: int) -> None:
    provider = FlakyProvider()
    complete = ModelConnector({group: GROUPS[group]}, POLICY).connect({group: provider}).complete
    if expected_calls == 1:
        with pytest.raises(TransientError):
            asyncio.run(as_coroutine(complete(make_request(group))))
    else:
        asyncio.run(as_coroutine(complete(make_request(group))))
    assert provider.call_count == expected_calls


def test_budget_counts_each_attempt_of_a_call() -> None:
    budget, spent_before_calls = Budget(BudgetSettings(completions=10)), []

    class SpendingEvents(CallEvents):
        def before_call(self, request: Request) -> None:
            assert request.group == "live"
            spent_before_calls.append(budget.spent)

    groups, servers = {"live": GROUPS["live"]}, Servers(1)
    admission = LocalAdmission(CallCosts(groups), servers, POLICY, budget)
    connector = ModelConnector(groups, POLICY, servers, admission, SpendingEvents())
    connection = connector.connect({"live": FlakyProvider()})
    asyncio.run(as_coroutine(connection.complete(make_request("live"))))
    assert [spent.completions for spent in spent_before_calls] == [0, 1]
    assert budget.spent.completions == 2
    assert budget._reserved == UsageTotals()
