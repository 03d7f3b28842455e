"""Permits that a worker takes ahead hold budget and limits as if each call were asked for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import BudgetExhausted
from runner.models.costs import CallCosts
from runner.models.interface import Completion, Request, SampleKey, Usage
from runner.models.layers.budget import Budget, BudgetSettings
from runner.models.layers.lost_calls import InFlight
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings
from runner.models.shared_servers import Servers
from runner.models.usage_totals import UsageTotals
from runner.rollouts.stop_switch import StopSwitch
from runner.runs.workers import messages
from runner.runs.workers.permits import SPARE_CALLS, Asking, Permits
from runner.runs.workers.prefetched_permits import MOST, PermitsAhead
from tests.support.virtual_time import run_in_virtual_time

WAY = 0.002


class _Pair:
    """A worker's permits and the writer's, some way apart."""

    def __init__(self, path: Path, concurrency: int, most_calls: int | None = None, **settings: Any) -> None:
        group = ModelSettings(provider="openai", model="m", base_url="http://127.0.0.1:9/v1", **settings)
        costs = CallCosts({"m": group})
        self.budget = Budget(BudgetSettings(completions=most_calls))
        self.in_flight, self.stop = InFlight(path), StopSwitch()
        self.permits = Permits(
            costs=costs, servers=Servers(concurrency), policy=Retry(), budget=self.budget, in_flight=self.in_flight,
            stop=self.stop, records=lambda: 0,
        )  # fmt: skip
        self.asking = Asking(self._tell)
        self.worker = PermitsAhead(self, costs, budgeted=True)
        self.said: list[Any] = []
        self._acts: dict[type, Callable[[Any], None]] = {
            messages.Ask: lambda one: self.permits.ask(self.asking, one),
            messages.AskAhead: lambda one: self.permits.ask_ahead(self.asking, one),
            messages.Used: lambda one: self.permits.used(self.asking, one),
            messages.Unused: lambda one: self.permits.unused(self.asking, one),
            messages.Ended: lambda one: self.permits.ended(self.asking, one),
            messages.GaveUp: lambda one: self.permits.gave_up(self.asking, one.number),
        }
        self.open = self.most_open = self.calls = 0
        self.complete = self.worker.around(self._call, None)

    def send(self, message: Any) -> None:
        self.said.append(message)
        asyncio.get_running_loop().call_later(WAY, lambda: self._acts[type(message)](message))

    def close(self) -> None: ...

    def _tell(self, message: Any) -> None:
        failure = getattr(message, "failure", None)
        asyncio.get_running_loop().call_later(WAY, lambda: self.worker.answered(message.number, failure))

    async def _call(self, request: Request) -> Completion:
        self.open, self.calls = self.open + 1, self.calls + 1
        self.most_open = max(self.most_open, self.open)
        await asyncio.sleep(0.001)
        self.open -= 1
        return Completion((), "", Usage(1, 1))

    async def games(self, count: int, calls: int) -> list[BaseException | None]:
        async def game(number: int) -> None:
            for turn in range(calls):
                sample = SampleKey(f"p{number}", 0, turn, "a", 0)
                await self.complete(Request(group="m", messages=(), sample=sample))
                await asyncio.sleep(0.001)
                self.permits.settled(self.asking, sample)

        return await asyncio.gather(*map(game, range(count)), return_exceptions=True)

    def count(self, kind: type) -> int:
        return sum(isinstance(one, kind) for one in self.said)


def played(pair: _Pair, play: Callable[[], Awaitable[Any]]) -> Any:
    async def all_of_it() -> Any:
        result = await play()
        pair.worker.end()
        await asyncio.sleep(10 * WAY)
        await pair.permits.all_over(pair.asking)
        return result

    return run_in_virtual_time(all_of_it())


def test_most_calls_find_a_permit_and_all_that_is_not_used_is_given_back(tmp_path: Path) -> None:
    pair = _Pair(tmp_path / "in_flight", 64)
    assert played(pair, lambda: pair.games(8, 40)) == [None] * 8
    assert pair.calls == 320
    assert pair.count(messages.Ask) < 160  # the others had theirs
    assert pair.count(messages.Used) + pair.count(messages.Ask) == 320
    assert pair.budget.spent.completions == 320
    assert pair.asking.calls == {}
    assert pair.asking.slots == {}
    assert pair.in_flight.count() == 0


@pytest.mark.parametrize("most", [100, SPARE_CALLS, 7])
def test_a_budget_is_used_up_to_the_call_and_no_further(tmp_path: Path, most: int) -> None:
    pair = _Pair(tmp_path / "in_flight", 64, most)
    ended = played(pair, lambda: pair.games(8, 40))
    assert pair.calls == most
    assert pair.budget.spent.completions == most
    assert all(isinstance(one, BudgetExhausted) for one in ended)


def test_where_places_are_few_each_call_is_asked_for_and_no_more_are_open(tmp_path: Path) -> None:
    pair = _Pair(tmp_path / "in_flight", 4)
    assert played(pair, lambda: pair.games(8, 20)) == [None] * 8
    assert pair.most_open <= 4
    assert pair.budget.spent.completions == 160


def test_where_a_rate_counts_calls_none_is_let_through_ahead(tmp_path: Path) -> None:
    pair = _Pair(tmp_path / "in_flight", 64, requests_per_minute=60_000)
    assert played(pair, lambda: pair.games(4, 10)) == [None] * 4
    assert pair.count(messages.Used) == 0
    assert pair.count(messages.Ask) == 40


def test_what_a_worker_had_that_died_counts_as_used(tmp_path: Path) -> None:
    pair = _Pair(tmp_path / "in_flight", 64)

    async def die() -> None:
        await pair.games(8, 10)
        held = len(pair.asking.slots)
        assert 0 < held <= MOST
        pair.permits.died(pair.asking, "was killed")
        await pair.permits.all_over(pair.asking)
        assert sum(pair.asking.slots.values(), UsageTotals()).completions == held
        assert pair.budget.spent.completions == 80 + held
        pair.permits.counted(pair.asking)

    run_in_virtual_time(die())
    assert pair.in_flight.count() == 0
