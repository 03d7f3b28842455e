"""A budget holds by the provider's own accounts, whatever fails, and raising it pays for the difference alone."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import (
    BudgetExhausted,
    CallError,
    ContextExceededError,
    MalformedError,
    RefusedError,
    SpecError,
    TransientError,
)
from runner.models.costs import CallCosts
from runner.models.interface import Choice, Completion, Request, SampleKey, Usage
from runner.models.layers.budget import Budget, BudgetSettings, within_budget
from runner.models.prices import price_of
from runner.models.settings import ModelSettings, Price
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.spec.loader import load_spec
from tests.cli.test_cli import called
from tests.support.event_loop import as_coroutine, run_loop_turns
from tests.support.processes import nip_run, nip_run_here
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.batch_client import run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

IN, OUT = 100.0, 400.0
PRICED = {"m": {"price": {"input": IN, "output": OUT}, "max_completion_tokens": 60, "timeout": 3.0}}
FAULTS = {
    "rate_limit": 0.05, "rate_limit_wait": 0.05, "server_error": 0.05, "drop": 0.05, "half_body": 0.05,
    "malformed": 0.05, "hang": 0.03,
}  # fmt: skip


def budget_of(**most: float) -> Any:
    return {"models": PRICED, "budget": most}


@pytest.mark.sample(1)
@pytest.mark.parametrize("concurrency", [1, 16])
def test_a_run_never_exceeds_its_budget_faults_and_retries_included(tmp_path: Path, concurrency: int) -> None:
    """By the provider's own account, which bills for answers that never arrived too."""
    with run_batch_provider(faults=FAULTS, latency=0.005) as provider:
        spec_file(tmp_path, provider.base_url, size=40, rollouts={"concurrency": concurrency}, **budget_of(usd=1.0))
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        spent = provider.billed_usd(IN, OUT)
        assert len(provider.stats()["kinds"]) > 1
    assert done.returncode == 3, done.stderr
    assert 0.2 < spent <= 1.0, "errors with status 500 count at their worst case, and are not billed"


def test_an_exhausted_budget_exits_3_and_says_how_to_go_on(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, **budget_of(usd=0.5))
        done = nip_run_here("spec.yaml", "seed=8", cwd=tmp_path)
    assert done.returncode == 3
    assert "budget.usd is used up" in done.stderr
    assert "budget.usd=" in done.stderr
    assert "nip-run run spec.yaml seed=8 budget.usd=N" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""
    assert json.loads((only_run(tmp_path / "results") / "manifest.json").read_text())["status"] == "interrupted"


@pytest.mark.full
@pytest.mark.parametrize(
    ("kind", "small", "large"), [("usd", 1.0, 50.0), ("tokens", 9_000, 10**7), ("completions", 11, 999)]
)
def test_raising_the_budget_goes_on_and_pays_for_the_difference_alone(
    tmp_path: Path, kind: str, small: float, large: float
) -> None:
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, models=PRICED)
        whole = run_spec(path, tmp_path / "whole")
        needed = provider.stats()["billed"]["answers"]
        with pytest.raises(BudgetExhausted, match=rf"budget\.{kind}"):
            run_spec(path, tmp_path / "results", f"budget.{kind}={small}")
        first = provider.stats()["billed"]["answers"] - needed
        resumed = run_spec(path, tmp_path / "results", f"budget.{kind}={large}")
        assert 0 < first < needed
        assert provider.stats()["billed"]["answers"] == 2 * needed
    assert derived_files(resumed.folder.path) == derived_files(whole.folder.path)


@pytest.mark.full
def test_a_run_that_its_budget_stopped_says_so_and_with_which_command_it_goes_on(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, size=4)
        words = ("--results", "mine")
        done = called("spec.yaml", "budget.completions=7", "-q", *words, cwd=tmp_path)
        assert "larger budget: nip-run run spec.yaml budget.completions=N --results mine\n" in done.stderr
        run = only_run(tmp_path / "mine")
        shown = called("show", "last", *words, cwd=tmp_path)
        assert "interrupted: stopped by its budget (7 of 7 completions)\n" in shown.stdout
        assert (
            f"no results yet; resume with: nip-run mine/runs/{run.name} budget.completions=N --results mine"
            in shown.stderr
        )
        assert "unfinished: stopped by its budget (7 of 7" in called("leaderboard", *words, cwd=tmp_path).stdout
        more = called(f"mine/runs/{run.name}", "budget.completions=1000", "-q", *words, cwd=tmp_path)
    assert more.returncode == 0, more.stderr
    assert only_run(tmp_path / "mine") == run
    assert "stopped by" not in called("show", "last", *words, cwd=tmp_path).stdout


@pytest.mark.full
def test_the_same_budget_again_asks_for_nothing_more_than_it_has_left(tmp_path: Path) -> None:
    with run_batch_provider(faults=FAULTS) as provider:
        path = spec_file(tmp_path, provider.base_url, size=30, **budget_of(usd=1.0))
        for _ in range(4):
            with pytest.raises(BudgetExhausted):
                run_spec(path, tmp_path / "results")
        assert provider.billed_usd(IN, OUT) <= 1.0


def test_a_tokens_budget_holds(tmp_path: Path) -> None:
    with run_batch_provider(faults=FAULTS) as provider:
        path = spec_file(tmp_path, provider.base_url, size=30, **budget_of(tokens=20_000))
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results")
        billed = provider.stats()["billed"]
    assert 5_000 < billed["prompt_tokens"] + billed["completion_tokens"] <= 20_000


def test_a_completions_budget_counts_every_call(tmp_path: Path) -> None:
    with run_batch_provider(faults={"server_error": 0.2}) as provider:
        path = spec_file(tmp_path, provider.base_url, budget={"completions": 20})
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results")
        assert provider.stats()["chat"] == 20


@pytest.mark.full
def test_what_the_server_did_not_count_stays_at_its_worst_case(tmp_path: Path) -> None:
    priced = {"m": {"price": {"input": 0.0, "output": 1e6}, "max_completion_tokens": 100}}  # a call may cost 100
    with run_chat_server(usage=False) as server:
        spec_file(tmp_path, server.base_url, size=20, models=priced, budget={"usd": 500})
        for _ in range(3):
            assert nip_run("spec.yaml", "-q", cwd=tmp_path).returncode == 3
        assert server.requests == 5


def test_an_unfinished_run_records_its_cost_apart_from_its_worst_case(tmp_path: Path) -> None:
    priced = {"m": {"price": {"input": 0.0, "output": 1e6}, "max_completion_tokens": 100}}  # a call may cost 100
    with run_chat_server(usage=False) as server:
        path = spec_file(tmp_path, server.base_url, size=20, models=priced, budget={"usd": 500})
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results")
    run = RunFolder(only_run(tmp_path / "results"))
    tokens = sum(record["usage"][1] for record in journal_records(run.path) if record["kind"] == "call")
    assert run.manifest().cost_usd == pytest.approx(tokens)
    assert 0 < tokens < (run.manifest().cost_usd_at_most or 0) == pytest.approx(500)


@pytest.mark.full
def test_a_budget_that_suffices_changes_nothing(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        free = run_spec(spec_file(tmp_path, provider.base_url, models=PRICED), tmp_path / "free")
        bound = run_spec(spec_file(tmp_path, provider.base_url, **budget_of(usd=100.0)), tmp_path / "bound")
        usd = provider.billed_usd(IN, OUT) / 2
    assert derived_files(free.folder.path) == derived_files(bound.folder.path)
    assert bound.manifest.cost_usd == pytest.approx(usd)


def test_games_that_were_begun_finish_where_the_budget_allows(tmp_path: Path) -> None:
    with run_batch_provider(latency=0.01) as provider:
        path = spec_file(tmp_path, provider.base_url, size=40, budget={"completions": 40})
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results")
        assert provider.stats()["chat"] == 40
    rounds: dict[tuple[str, int], int] = {}
    for record in journal_records(only_run(tmp_path / "results")):
        if record["kind"] == "call":
            datapoint, repeat, *_ = record["sample"]
            rounds[datapoint, repeat] = rounds.get((datapoint, repeat), 0) + 1
    assert len(rounds) < 25


@pytest.mark.full
def test_a_sweep_shares_one_budget(tmp_path: Path) -> None:
    patient = "models.m.timeout=30"  # what is given up on a busy machine is charged at its worst case
    with run_batch_provider() as provider:
        spec_file(
            tmp_path,
            provider.base_url,
            size=4,
            sweep={"seed": [1, 2, 3, 4]},
            rollouts={"concurrency": 4},
            **budget_of(usd=0.9),
        )
        done = nip_run_here("spec.yaml", "-q", patient, cwd=tmp_path)
        first = provider.billed_usd(IN, OUT)
        more = nip_run_here("spec.yaml", "-q", "budget.usd=1.4", patient, cwd=tmp_path)
        second = provider.billed_usd(IN, OUT)
    assert (done.returncode, more.returncode) == (3, 3), done.stderr + more.stderr
    assert 0.4 < first <= 0.9 < second <= 1.4


@pytest.mark.full
def test_the_points_of_a_sweep_may_each_wait_for_room_in_the_budget(tmp_path: Path) -> None:
    """Both points have calls that wait until others are settled, each in an event loop of its own."""
    solo = {
        "protocol": {"use": "solo_verifier", "max_message_rounds": None}, "agents": {"prover": None},
        "prompts": "prompts/code_validation/solo_verifier", "models": PRICED,
    }  # fmt: skip
    with run_batch_provider(latency=0.05) as provider:
        path = spec_file(tmp_path, provider.base_url, size=6, **solo)
        call = (run_spec(path, tmp_path / "one").manifest.cost_usd or 0) / 6
        spec_file(tmp_path, provider.base_url, size=6, sweep={"seed": [1, 2]}, **solo)
        # Twelve calls, each of which may cost four times what it will.
        done = nip_run_here("spec.yaml", "-q", f"budget.usd={18 * call:.6f}", cwd=tmp_path)
        assert provider.stats()["chat"] <= 18
    assert done.returncode == 0, done.stderr


def test_one_budget_serves_one_event_loop_after_another() -> None:
    budget = Budget(BudgetSettings(completions=100, usd=1.0))
    big = UsageTotals(0.8, 0, 1)

    async def two_at_once() -> None:
        async def one() -> None:
            await budget.reserve(big)
            await asyncio.sleep(0)
            budget.settle(big, UsageTotals(0.01, 0, 1))

        await asyncio.gather(one(), one())

    for _ in range(3):
        asyncio.run(two_at_once())
    assert budget.spent.completions == 6


@pytest.mark.parametrize(
    ("budget", "model", "message"),
    [
        ({"usd": 1.0}, {"max_completion_tokens": 60}, r"price for model 'tiny'.*models\.m\.price"),
        ({"usd": 1.0}, {"price": {"input": 1, "output": 1}}, r"models\.m\.max_completion_tokens"),
        ({"tokens": 1000}, {}, r"models\.m\.max_completion_tokens"),
    ],
)
def test_what_cannot_be_bounded_is_refused_before_any_call(
    tmp_path: Path, budget: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", budget=budget, models={"m": model})
    with pytest.raises(SpecError, match=message):
        load_spec(path)
    done = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "results").exists()


def test_what_costs_nothing_needs_no_price_and_no_limit(tmp_path: Path) -> None:
    assert run_spec(spec_file(tmp_path, budget={"usd": 0.01}), tmp_path / "results").manifest.cost_usd == 0


def test_a_budget_of_calls_needs_neither_price_nor_limit(tmp_path: Path) -> None:
    spec = load_spec(spec_file(tmp_path, "http://127.0.0.1:9/v1", budget={"completions": 5}))
    assert spec.experiment.budget.completions == 5


@pytest.mark.full
def test_a_replay_spends_nothing_of_a_budget(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        first = run_spec(spec_file(tmp_path, provider.base_url), tmp_path / "results")
        needed = provider.requests
        done = nip_run_here("spec.yaml", "-q", "--replay", first.folder.run_id, "budget.completions=3", cwd=tmp_path)
        assert provider.requests == needed
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_an_answer_from_the_cache_spends_nothing_of_a_budget(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, cache="cache.sqlite")
        run_spec(path, tmp_path / "first")
        needed = provider.requests
        run_spec(path, tmp_path / "second", "budget.completions=1")
        assert provider.requests == needed


# The parts


SETTINGS = ModelSettings(
    model="tiny", base_url="http://127.0.0.1:9/v1", max_completion_tokens=50, price=Price(input=1.0, output=2.0)
)
REQUEST = Request("m", ({"role": "user", "content": "Ünïcode"},), SampleKey("p", 0, 0, "verifier", 0))


def worst_case(request: Request, settings: ModelSettings = SETTINGS) -> UsageTotals:
    return CallCosts({"m": settings}).worst_case(request)


def test_what_is_billed_besides_the_messages_is_in_the_worst_case() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "look", "description": "x" * 1000}}]}
    assert worst_case(REQUEST, replace(SETTINGS, extra_body=tools)).tokens >= worst_case(REQUEST).tokens + 1000


def test_the_worst_case_is_a_token_for_each_byte_and_every_answer_in_full() -> None:
    assert worst_case(REQUEST).tokens >= len("Ünïcode".encode()) + 50
    many = Request("m", REQUEST.messages, REQUEST.sample, n=4)
    assert worst_case(many).tokens - worst_case(REQUEST).tokens == 150
    assert worst_case(REQUEST).completions == 1


def test_listed_prices_hold_for_the_server_of_openai_alone() -> None:
    assert price_of(ModelSettings(model="gpt-4o-mini-2024-07-18")) == price_of(ModelSettings(model="gpt-4o-mini"))
    assert price_of(ModelSettings(model="gpt-4o-mini", base_url="http://127.0.0.1:9/v1")) is None
    regional = "https://eu.api.openai.com/v1"  # where newer models cost 10 % more, which the list does not have
    assert price_of(ModelSettings(model="gpt-4o-mini", base_url=regional)) is None
    assert price_of(ModelSettings(model="unheard-of")) is None
    own = Price(input=9.0, output=9.0)
    assert price_of(ModelSettings(model="gpt-4o-mini", price=own)) == own


def paid(budget: Budget, outcome: Completion | Exception) -> None:
    async def complete(_: Request) -> Completion:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    asked = within_budget(complete, budget, CallCosts({"m": SETTINGS}))
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome)):
            asyncio.run(as_coroutine(asked(REQUEST)))
    else:
        asyncio.run(as_coroutine(asked(REQUEST)))


def test_a_call_is_settled_at_what_the_server_counted() -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    paid(budget, Completion((Choice("x", "stop"),), "tiny", Usage(10, 5)))
    assert budget.spent == UsageTotals(20e-6, 15, 1, prompt_tokens=10, completion_tokens=5)


def test_a_call_without_an_answer_is_settled_at_its_worst_case() -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    paid(budget, TransientError("cut off"))
    assert budget.spent == worst_case(REQUEST)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 524])
def test_a_call_that_failed_while_the_server_may_have_worked_on_it_is_settled_at_its_worst_case(status: int) -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    paid(budget, TransientError("timed out", status=status))
    assert budget.spent == worst_case(REQUEST)


@pytest.mark.parametrize(
    "error",
    [
        TransientError("busy", status=429),
        MalformedError("no", status=400),
        ContextExceededError("too long", status=500),
        RefusedError("no", status=500),
    ],
)
def test_a_call_that_the_server_clearly_refused_costs_no_money(error: CallError) -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    paid(budget, error)
    assert budget.spent == UsageTotals(0.0, 0, 1)


def test_a_call_that_was_given_up_is_settled_and_leaves_no_reserve() -> None:
    budget = Budget(BudgetSettings(completions=2))

    async def never(_: Request) -> Completion:
        await asyncio.sleep(60)
        raise AssertionError

    asked = within_budget(never, budget, CallCosts({"m": SETTINGS}))

    async def given_up() -> None:
        task = asyncio.create_task(as_coroutine(asked(REQUEST)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await budget.reserve(UsageTotals(0.0, 0, 1))
        with pytest.raises(BudgetExhausted):
            budget.settle(UsageTotals(0.0, 0, 1), UsageTotals(0.0, 0, 1))
            await budget.reserve(UsageTotals(0.0, 0, 1))

    asyncio.run(given_up())


def test_money_set_aside_is_never_more_than_the_budget_whatever_the_order() -> None:
    import random

    async def many() -> float:
        rng, budget, highest = random.Random(3), Budget(BudgetSettings(usd=1.0)), 0.0
        open_: set[int] = set()

        async def one(index: int) -> None:
            nonlocal highest
            most = UsageTotals(rng.uniform(0.01, 0.3), 0, 1)
            await budget.reserve(most)
            open_.add(index)
            highest = max(highest, budget.spent.usd + budget._reserved.usd)
            await run_loop_turns(rng.randrange(40))
            open_.discard(index)
            budget.settle(most, UsageTotals(most.usd * rng.random() * 0.1, 0, 1))

        found = await asyncio.gather(*(one(i) for i in range(200)), return_exceptions=True)
        assert all(e is None or isinstance(e, BudgetExhausted) for e in found)
        assert budget._reserved == UsageTotals()
        return highest

    assert asyncio.run(many()) <= 1.0 + 1e-9
