"""Server pools: failover to other servers, return to recovered ones, and errors if all are down."""

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


def make_request(number: int, round_: int = 0) -> Request:
    return Request("m", (), SampleKey(f"p{number}", 0, round_, "verifier", 0))


def unreachable_error() -> TransientError:
    return TransientError("connection refused", unreachable=True)


def rate_limit_error() -> TransientError:
    return TransientError("slow down", status=429)


class ThreeServers:
    """Three servers with a simulated clock; the servers in `failing` fail."""

    def __init__(self, *, attempts: int = 8, failures: int = 2, probes: int = 3, first_wait: float = 1.0) -> None:
        self.now = 100.0
        self.calls: list[tuple[int, str]] = []
        self.failing: dict[int, Callable[[], CallError]] = {}
        self.notices: list[str | None] = []
        self.health_notices: list[str | None] = []
        self.waits: list[float] = []
        self.enough_calls = asyncio.Event()
        """Set at the 60th call."""
        # The simulated clock adds up concurrent sleeps.
        waits = TransientPolicy(jitter=0.0, attempts=attempts, first_wait=first_wait, max_wait=4.0, total_seconds=1e6)
        policy = BreakerPolicy(failures=failures, probes=probes)
        self.breakers = [Breaker(name, policy, waits, clock=lambda: self.now) for name in NAMES]
        for breaker in self.breakers:
            breaker.add_listener(self.notices.append)
        self.healths = [
            ServerHealth(name, "m", failures, waits, on_change=self.health_notices.append, clock=lambda: self.now)
            for name in NAMES
        ]
        servers = [
            PooledServer(breaker, health, self._provider_at(at))
            for at, (breaker, health) in enumerate(zip(self.breakers, self.healths, strict=True))
        ]
        self.placement = Placement(NAMES)
        self.group = ServerPool(servers, self.placement, waits, NO_EVENTS, sleep=self._sleep, clock=lambda: self.now)

    async def _sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds
        await asyncio.sleep(0)

    def _provider_at(self, index: int) -> Complete:
        async def complete(incoming: Request) -> Completion:
            self.calls.append((index, incoming.sample.datapoint))
            if len(self.calls) == 60:
                self.enough_calls.set()
            await asyncio.sleep(0)
            if index in self.failing:
                error = self.failing[index]()
                raise error
            return ANSWER

        return complete

    def ask(self, *requests: Request) -> list[Completion | BaseException]:
        async def together() -> list[Completion | BaseException]:
            return await asyncio.gather(*map(self.group.complete, requests), return_exceptions=True)

        return run_sync(together)

    def homes(self, numbers: range) -> dict[int, int]:
        return {n: self.placement.home_of(make_request(n).sample, lambda _: True) for n in numbers}


def test_call_to_an_unreachable_server_fails_over_at_once() -> None:
    servers = ThreeServers()
    home = servers.homes(range(1))[0]
    servers.failing[home] = unreachable_error
    assert servers.ask(make_request(0)) == [ANSWER]
    assert servers.calls[0][0] == home
    assert len(servers.calls) == 2
    assert servers.waits == []


def test_server_that_is_down_gets_single_probes_and_its_games_after_recovery() -> None:
    servers = ThreeServers()
    homes = servers.homes(range(30))
    servers.failing[0] = unreachable_error
    assert servers.ask(*map(make_request, range(30))) == [ANSWER] * 30
    assert [notice is None for notice in servers.notices] == [False]
    servers.calls.clear()
    assert servers.ask(*(make_request(n, 1) for n in range(30))) == [ANSWER] * 30
    assert Counter(at for at, _ in servers.calls)[0] == 0, "its wait is not over"
    servers.now += 10
    servers.calls.clear()
    assert servers.ask(*(make_request(n, 2) for n in range(30))) == [ANSWER] * 30
    assert Counter(at for at, _ in servers.calls)[0] == 1
    servers.failing.clear()
    servers.now += 10
    servers.ask(make_request(0, 3))
    assert [notice is None for notice in servers.notices] == [False, True]
    servers.calls.clear()
    servers.ask(*(make_request(n, 4) for n in range(30)))
    assert {int(point[1:]): at for at, point in servers.calls} == homes


def test_probing_a_server_that_is_down_is_not_an_attempt_of_the_call() -> None:
    servers = ThreeServers(attempts=1, failures=1)
    servers.failing[0] = unreachable_error
    number_by_home = {at: n for n, at in servers.homes(range(30)).items()}
    (failed,) = servers.ask(make_request(number_by_home[0]))
    assert isinstance(failed, TransientError), "the policy allows one attempt, and this was it"
    servers.now += 10
    assert servers.ask(make_request(number_by_home[1])) == [ANSWER]
    assert [at for at, _ in servers.calls] == [0, 0, 1]


def test_calls_do_not_stay_at_a_down_server_if_retries_do_not_wait() -> None:
    servers = ThreeServers(first_wait=0.0)
    servers.failing[0] = unreachable_error
    assert servers.ask(*map(make_request, range(30))) == [ANSWER] * 30
    servers.calls.clear()
    assert servers.ask(*(make_request(n, 1) for n in range(30))) == [ANSWER] * 30
    assert max(Counter(call for call in servers.calls if call[0] == 0).values()) == 1


def test_rate_limit_is_retried_on_the_same_server() -> None:
    servers = ThreeServers(attempts=3)
    home = servers.homes(range(1))[0]
    servers.failing[home] = rate_limit_error
    (failed,) = servers.ask(make_request(0))
    assert isinstance(failed, TransientError)
    assert [at for at, _ in servers.calls] == [home] * 3
    assert servers.waits == [1.0, 2.0]


@pytest.mark.parametrize("status", [429, 503])
def test_call_moves_if_its_server_asks_for_a_longer_wait_than_the_policy_allows(status: int) -> None:
    servers = ThreeServers()
    home = servers.homes(range(1))[0]
    servers.failing[home] = lambda: TransientError("quota used up", status=status, retry_after=1e7)
    assert servers.ask(make_request(0)) == [ANSWER]
    assert [at == home for at, _ in servers.calls] == [True, False]
    assert servers.waits == []


def test_error_names_every_server_if_all_are_down() -> None:
    servers = ThreeServers(attempts=100, failures=2, probes=3)
    servers.failing = dict.fromkeys(range(3), unreachable_error)
    outcomes = servers.ask(*map(make_request, range(20)))
    assert {type(outcome) for outcome in outcomes} == {ServerUnreachable}
    assert all(name in str(outcomes[0]) for name in NAMES)
    assert len(servers.calls) < 20 * 2 + 3 * 3 * 2, "one call at a time tried each"


def test_calls_waiting_for_any_server_continue_once_one_recovers() -> None:
    servers = ThreeServers(attempts=100, failures=2, probes=50)
    servers.failing = dict.fromkeys(range(3), unreachable_error)

    async def recover_while_calls_wait() -> list[Completion]:
        pending = asyncio.gather(*(servers.group.complete(make_request(n)) for n in range(20)))
        await servers.enough_calls.wait()
        del servers.failing[2]
        return await pending

    assert run_sync(recover_while_calls_wait) == [ANSWER] * 20
    assert servers.notices[-1] is None


@pytest.mark.parametrize("status", [500, 200, 404])
def test_call_with_a_server_error_fails_over_at_once(status: int) -> None:
    servers = ThreeServers(attempts=2)
    home = servers.homes(range(1))[0]
    servers.failing[home] = lambda: TransientError("failed", status=status)
    assert servers.ask(make_request(0)) == [ANSWER]
    assert servers.calls[0][0] == home
    assert servers.waits == []


def context_error() -> CallError:
    return ContextExceededError("too long", status=400)


def unknown_model_error() -> CallError:
    return ServerRefusal(ProviderRefusal("no such model\nCheck the name.", changes={"models.m.model": None}))


def test_refused_call_is_sent_to_every_server_regardless_of_attempts() -> None:
    servers = ThreeServers(attempts=1)
    order = servers.placement.preferred_order(make_request(0).sample)
    servers.failing.update(dict.fromkeys(order[:2], context_error))
    assert servers.ask(make_request(0)) == [ANSWER]
    assert [at for at, _ in servers.calls] == order


def test_context_error_is_raised_if_one_of_the_refusing_servers_reports_it() -> None:
    servers = ThreeServers()
    order = servers.placement.preferred_order(make_request(0).sample)
    servers.failing = {order[0]: unknown_model_error, order[1]: context_error, order[2]: unknown_model_error}
    (error,) = servers.ask(make_request(0))
    assert isinstance(error, ContextExceededError)
    assert len(servers.calls) == 3


def test_group_refusal_is_raised_if_every_server_refuses_all_calls() -> None:
    servers = ThreeServers()
    servers.failing = dict.fromkeys(range(3), unknown_model_error)
    (error,) = servers.ask(make_request(0))
    assert isinstance(error, ProviderRefusal)
    assert str(error) == "no such model\nno such model\nno such model\nCheck the name."
    assert error.changes == {"models.m.model": None}


def test_server_that_refuses_all_calls_is_avoided_until_it_recovers() -> None:
    servers = ThreeServers(first_wait=1.0)
    homes = servers.homes(range(30))
    servers.failing[0] = unknown_model_error
    assert servers.ask(*(make_request(n) for n, at in homes.items() if at == 0)) == [ANSWER] * sum(
        at == 0 for at in homes.values()
    )
    assert [notice is None for notice in servers.health_notices] == [False]
    servers.calls.clear()
    servers.ask(*(make_request(n, 1) for n in homes))
    assert Counter(at for at, _ in servers.calls)[0] == 0, "its wait is not over"
    servers.now += 10
    servers.calls.clear()
    assert servers.ask(*(make_request(n, 2) for n in homes)) == [ANSWER] * 30
    assert Counter(at for at, _ in servers.calls)[0] == 1
    servers.failing.clear()
    servers.now += 10
    servers.ask(make_request(0, 3))
    assert [notice is None for notice in servers.health_notices] == [False, True]


def test_server_with_a_shorter_context_is_not_avoided_after_an_answer() -> None:
    servers = ThreeServers(failures=2)
    homes = servers.homes(range(60))
    numbers_at_first = [n for n, at in homes.items() if at == 0]
    assert servers.ask(make_request(numbers_at_first[0])) == [ANSWER]
    servers.failing[0] = context_error
    assert servers.ask(*(make_request(n) for n in numbers_at_first[1:])) == [ANSWER] * (len(numbers_at_first) - 1)
    assert servers.health_notices == []


def test_last_remaining_server_decides_if_the_others_are_avoided() -> None:
    servers = ThreeServers(failures=1)
    homes = servers.homes(range(60))
    servers.failing.update({0: unknown_model_error, 1: unknown_model_error})
    assert servers.ask(*map(make_request, homes)) == [ANSWER] * 60
    servers.failing[2] = context_error
    (error,) = servers.ask(make_request(0, 1))
    assert isinstance(error, ContextExceededError)


def test_refusal_is_not_final_while_other_servers_are_unreachable() -> None:
    servers = ThreeServers(failures=1, probes=3)
    order = servers.placement.preferred_order(make_request(0).sample)
    servers.failing = {order[0]: context_error, order[1]: unreachable_error, order[2]: unreachable_error}
    (error,) = servers.ask(make_request(0))
    assert isinstance(error, TransientError), "another process asks again"
    assert "too long" in str(error) or "refused" in str(error)
