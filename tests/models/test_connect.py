"""How the layers between a game and a provider are put together, group by group."""

from __future__ import annotations

import asyncio

import pytest

from runner.errors import TransientError
from runner.models.base import Choice, Completion, Request, SampleKey
from runner.models.connect import connect
from runner.models.layers.budget import Amount, Budget, BudgetSettings
from runner.models.policy import TransientPolicy
from runner.models.settings import ModelSettings
from tests.support.calls import answer_to

URL = "http://127.0.0.1:9/v1"
GROUPS = {
    "live": ModelSettings(model="tiny", base_url=URL, requests_per_minute=60),
    "batch": ModelSettings(model="tiny", base_url=URL, batch=True),
    "offline": ModelSettings(provider="dummy"),
}
POLICY = TransientPolicy(attempts=3, first_wait=0.0)


class Flaky:
    """A provider that fails once, and then answers."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: Request) -> Completion:
        del request
        self.asked += 1
        if self.asked == 1:
            raise TransientError("busy", status=503)
        return Completion((Choice("x", "stop"),), "tiny")

    async def close(self) -> None:
        pass


def request(group: str) -> Request:
    return Request(group, ({"role": "user", "content": "x"},), SampleKey("p", 0, 0, "verifier", 0))


def test_groups_that_are_asked_call_by_call_over_a_network_have_a_limit_and_no_others() -> None:
    limits = connect(GROUPS, POLICY, concurrency=12, providers={name: Flaky() for name in GROUPS}).limits
    assert limits is not None
    assert list(limits) == ["live"]
    assert set(limits["live"]._buckets) == {"requests"}
    assert limits["live"].limit == 8


@pytest.mark.parametrize(("group", "asked"), [("live", 2), ("batch", 2), ("offline", 1)])
def test_failures_of_transport_are_asked_again_where_there_is_a_network_and_nowhere_else(
    group: str, asked: int
) -> None:
    provider = Flaky()
    complete = connect({group: GROUPS[group]}, POLICY, providers={group: provider}).complete
    if asked == 1:
        with pytest.raises(TransientError):
            asyncio.run(answer_to(complete(request(group))))
    else:
        asyncio.run(answer_to(complete(request(group))))
    assert provider.asked == asked


def test_each_attempt_of_a_call_is_counted_by_the_budget_and_asked_for_beforehand() -> None:
    budget, before = Budget(BudgetSettings(completions=10)), []
    connection = connect(
        {"live": GROUPS["live"]}, POLICY, providers={"live": Flaky()}, budget=budget,
        before_call=lambda _: before.append(budget.spent),
    )  # fmt: skip
    asyncio.run(answer_to(connection.complete(request("live"))))
    assert [amount.completions for amount in before] == [0, 1]
    assert budget.spent.completions == 2
    assert budget._reserved == Amount()
