"""A call whose server is down goes to the next; a server that is back gets its games back; none up is as one down."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import pytest

from runner.base.async_runner import run_sync
from runner.base.errors import CallError, ContextExceededError, ProviderRefusal, ServerUnreachable, TransientError
from runner.models.call_events import NO_EVENTS
from runner.models.interface import Choice, Complete, Completion, Request, SampleKey
from runner.models.layers.breaker import Breaker
from runner.models.layers.server_health import ServerHealth, ServerRefusal
from runner.models.layers.server_pool import Placement, PooledServer, ServerPool
from runner.models.retry_policy import BreakerPolicy, TransientPolicy

ANSWER = Completion((Choice("x", "stop"),), "tiny")
NAMES = ["http://a", "http://b", "http://c"]


def request(number: int, round_: int = 0) -> Request:
    return Request("m", (), SampleKey(f"p{number}", 0, round_, "verifier", 0))


def refused() -> TransientError:
    return TransientError("connection refused", unreachable=True)


def limited() -> TransientError:
    return TransientError("slow down", status=429)


class Three:
    """Three servers in a time of their own, of which some fail."""

    def __init__(self, *, attempts: int = 8, failures: int = 2, probes: int = 3, first_wait: float = 1.0) -> None:
        self.now = 100.0
        self.asked: list[tuple[int, str]] = []
        self.failing: dict[int, Callable[[], CallError]] = {}
        self.told: list[str | None] = []
        self.left: list[str | None] = []
        self.waits: list[float] = []
        self.enough = asyncio.Event()
        """Set at the 60th call."""
        # Sleeps at the same time add up here.
        waits = TransientPolicy(jitter=0.0, attempts=attempts, first_wait=first_wait, max_wait=4.0, total_seconds=1e6)
        policy = BreakerPolicy(failures=failures, probes=probes)
        self.breakers = [Breaker(name, policy, waits, sleep=self._sleep, clock=lambda: self.now) for name in NAMES]
        for breaker in self.breakers:
            breaker.add_listener(self.told.append)
        self.healths = [
            ServerHealth(name, "m", failures, waits, on_change=self.left.append, clock=lambda: self.now)
            for name in NAMES
        ]
        servers = [
            PooledServer(breaker, health, self._of(at))
            for at, (breaker, health) in enumerate(zip(self.breakers, self.healths, strict=True))
        ]
        self.placement = Placement(NAMES)
        self.group = ServerPool(servers, self.placement, waits, NO_EVENTS, sleep=self._sleep, clock=lambda: self.now)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def _of(self, at: int) -> Complete:
        async def complete(asked: Request) -> Completion:
            self.asked.append((at, asked.sample.datapoint))
            if len(self.asked) == 60:
                self.enough.set()
            await asyncio.sleep(0)
            if at in self.failing:
                error = self.failing[at]()
                raise error
            return ANSWER

        return complete

    def ask(self, *requests: Request) -> list[Completion | BaseException]:
        async def together() -> list[Completion | BaseException]:
            return await asyncio.gather(*map(self.group.complete, requests), return_exceptions=True)

        return run_sync(together)

    def homes(self, numbers: range) -> dict[int, int]:
        return {n: self.placement.home_of(request(n).sample, lambda _: True) for n in numbers}


def test_a_call_whose_server_is_away_is_asked_elsewhere_at_once() -> None:
    three = Three()
    home = three.homes(range(1))[0]
    three.failing[home] = refused
    assert three.ask(request(0)) == [ANSWER]
    assert three.asked[0][0] == home
    assert len(three.asked) == 2
    assert three.waits == []


def test_a_server_that_is_down_is_left_but_for_one_call_at_a_time_and_its_games_come_back() -> None:
    three = Three()
    homes = three.homes(range(30))
    three.failing[0] = refused
    assert three.ask(*map(request, range(30))) == [ANSWER] * 30
    assert [said is None for said in three.told] == [False]
    three.asked.clear()
    assert three.ask(*(request(n, 1) for n in range(30))) == [ANSWER] * 30
    assert Counter(at for at, _ in three.asked)[0] == 0, "its wait is not over"
    three.now += 10
    three.asked.clear()
    assert three.ask(*(request(n, 2) for n in range(30))) == [ANSWER] * 30
    assert Counter(at for at, _ in three.asked)[0] == 1
    three.failing.clear()
    three.now += 10
    three.ask(request(0, 3))
    assert [said is None for said in three.told] == [False, True]
    three.asked.clear()
    three.ask(*(request(n, 4) for n in range(30)))
    assert {int(point[1:]): at for at, point in three.asked} == homes


def test_trying_a_server_that_is_down_is_no_attempt_of_the_call() -> None:
    three = Three(attempts=1, failures=1)
    three.failing[0] = refused
    home = {at: n for n, at in three.homes(range(30)).items()}
    (failed,) = three.ask(request(home[0]))
    assert isinstance(failed, TransientError), "the policy allows one attempt, and this was it"
    three.now += 10
    assert three.ask(request(home[1])) == [ANSWER]
    assert [at for at, _ in three.asked] == [0, 0, 1]


def test_no_call_is_kept_at_a_server_that_is_down_where_tries_do_not_wait() -> None:
    three = Three(first_wait=0.0)
    three.failing[0] = refused
    assert three.ask(*map(request, range(30))) == [ANSWER] * 30
    three.asked.clear()
    assert three.ask(*(request(n, 1) for n in range(30))) == [ANSWER] * 30
    assert max(Counter(asked for asked in three.asked if asked[0] == 0).values()) == 1


def test_a_rate_limit_is_no_reason_to_leave() -> None:
    three = Three(attempts=3)
    home = three.homes(range(1))[0]
    three.failing[home] = limited
    (failed,) = three.ask(request(0))
    assert isinstance(failed, TransientError)
    assert [at for at, _ in three.asked] == [home] * 3
    assert three.waits == [1.0, 2.0]


def test_all_down_is_as_one_that_is_down_and_each_is_named_in_the_end() -> None:
    three = Three(attempts=100, failures=2, probes=3)
    three.failing = dict.fromkeys(range(3), refused)
    found = three.ask(*map(request, range(20)))
    assert {type(one) for one in found} == {ServerUnreachable}
    assert all(name in str(found[0]) for name in NAMES)
    assert len(three.asked) < 20 * 2 + 3 * 3 * 2, "one call at a time tried each"


def test_calls_that_wait_for_any_of_them_go_on_once_one_is_there() -> None:
    three = Three(attempts=100, failures=2, probes=50)
    three.failing = dict.fromkeys(range(3), refused)

    async def meanwhile() -> list[Completion]:
        calls = asyncio.gather(*(three.group.complete(request(n)) for n in range(20)))
        await three.enough.wait()
        del three.failing[2]
        return await calls

    assert run_sync(meanwhile) == [ANSWER] * 20
    assert three.told[-1] is None


@pytest.mark.parametrize("status", [500, 200, 404])
def test_a_call_that_a_server_fails_in_is_asked_elsewhere_at_once(status: int) -> None:
    three = Three(attempts=2)
    home = three.homes(range(1))[0]
    three.failing[home] = lambda: TransientError("failed", status=status)
    assert three.ask(request(0)) == [ANSWER]
    assert three.asked[0][0] == home
    assert three.waits == []


def too_long() -> CallError:
    return ContextExceededError("too long", status=400)


def unknown() -> CallError:
    return ServerRefusal(ProviderRefusal("no such model\nCheck the name.", changes={"models.m.model": None}))


def test_a_refusal_is_asked_at_each_of_the_others_whatever_the_attempts() -> None:
    three = Three(attempts=1)
    order = three.placement.preferred_order(request(0).sample)
    three.failing.update(dict.fromkeys(order[:2], too_long))
    assert three.ask(request(0)) == [ANSWER]
    assert [at for at, _ in three.asked] == order


def test_what_all_refuse_is_raised_as_the_prompts_fault_where_one_says_so() -> None:
    three = Three()
    order = three.placement.preferred_order(request(0).sample)
    three.failing = {order[0]: unknown, order[1]: too_long, order[2]: unknown}
    (error,) = three.ask(request(0))
    assert isinstance(error, ContextExceededError)
    assert len(three.asked) == 3


def test_what_all_refuse_of_everybody_is_the_groups_refusal() -> None:
    three = Three()
    three.failing = dict.fromkeys(range(3), unknown)
    (error,) = three.ask(request(0))
    assert isinstance(error, ProviderRefusal)
    assert str(error) == "no such model\nno such model\nno such model\nCheck the name."
    assert error.changes == {"models.m.model": None}


def test_one_that_serves_nobody_is_left_at_the_first_call_and_comes_back_once_it_does() -> None:
    three = Three(first_wait=1.0)
    homes = three.homes(range(30))
    three.failing[0] = unknown
    assert three.ask(*(request(n) for n, at in homes.items() if at == 0)) == [ANSWER] * sum(
        at == 0 for at in homes.values()
    )
    assert [said is None for said in three.left] == [False]
    three.asked.clear()
    three.ask(*(request(n, 1) for n in homes))
    assert Counter(at for at, _ in three.asked)[0] == 0, "its wait is not over"
    three.now += 10
    three.asked.clear()
    assert three.ask(*(request(n, 2) for n in homes)) == [ANSWER] * 30
    assert Counter(at for at, _ in three.asked)[0] == 1
    three.failing.clear()
    three.now += 10
    three.ask(request(0, 3))
    assert [said is None for said in three.left] == [False, True]


def test_one_with_a_shorter_context_is_not_left_once_it_has_answered() -> None:
    three = Three(failures=2)
    homes = three.homes(range(60))
    at_first = [n for n, at in homes.items() if at == 0]
    assert three.ask(request(at_first[0])) == [ANSWER]
    three.failing[0] = too_long
    assert three.ask(*(request(n) for n in at_first[1:])) == [ANSWER] * (len(at_first) - 1)
    assert three.left == []


def test_where_all_others_are_left_the_last_one_is_asked_and_judges() -> None:
    three = Three(failures=1)
    homes = three.homes(range(60))
    three.failing.update({0: unknown, 1: unknown})
    assert three.ask(*map(request, homes)) == [ANSWER] * 60
    three.failing[2] = too_long
    (error,) = three.ask(request(0, 1))
    assert isinstance(error, ContextExceededError)


def test_a_refusal_is_not_judged_while_the_others_are_only_away() -> None:
    three = Three(failures=1, probes=3)
    order = three.placement.preferred_order(request(0).sample)
    three.failing = {order[0]: too_long, order[1]: refused, order[2]: refused}
    (error,) = three.ask(request(0))
    assert isinstance(error, TransientError), "another process asks again"
    assert "too long" in str(error) or "refused" in str(error)
