"""Budgets: the provider never bills more than the budget, and a raised budget pays only for the difference."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import (
    BudgetExhausted,
    ContextExceededError,
    MalformedError,
    NipRunError,
    ProviderRefusal,
    RefusedError,
    SpecError,
    Stopped,
    TransientError,
)
from runner.models.admission import LocalAdmission
from runner.models.costs import CallCosts
from runner.models.interface import Choice, Completion, Request, SampleKey, Usage
from runner.models.layers.budget import Budget, BudgetSettings, within_budget
from runner.models.prices import price_of
from runner.models.retry_policy import Retry
from runner.models.server_states import Servers
from runner.models.settings import ModelSettings, Price
from runner.models.usage_totals import UsageTotals
from runner.results.folder import RunFolder
from runner.rollouts.stop_switch import StopSwitch
from runner.spec.loader import load_spec
from tests.cli.test_cli import run_cli
from tests.support.event_loop import as_coroutine, run_loop_turns
from tests.support.processes import nip_run, nip_run_here
from tests.support.runs import derived_files, journal_records, only_run, run_spec
from tests.support.servers.batch_client import run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import SOLO_OVERRIDES, spec_file

IN, OUT = 100.0, 400.0
PRICED = {"m": {"price": {"input": IN, "output": OUT}, "max_completion_tokens": 60, "timeout": 3.0}}
FAULTS = {
    "rate_limit": 0.05, "rate_limit_wait": 0.05, "server_error": 0.05, "drop": 0.05, "half_body": 0.05,
    "malformed": 0.05, "hang": 0.03,
}  # fmt: skip


def make_priced_budget(**most: float) -> Any:
    return {"models": PRICED, "budget": most}


@pytest.mark.sample(1)
@pytest.mark.parametrize("concurrency", [1, 16])
def test_run_never_exceeds_its_budget_despite_faults_and_retries(tmp_path: Path, concurrency: int) -> None:
    """The provider's bill includes answers that never arrived."""
    with run_batch_provider(faults=FAULTS, latency=0.005) as provider:
        spec_file(
            tmp_path, provider.base_url, size=40, rollouts={"concurrency": concurrency}, **make_priced_budget(usd=1.0)
        )
        done = nip_run_here("spec.yaml", "-q", cwd=tmp_path)
        spent = provider.billed_usd(IN, OUT)
        assert len(provider.stats()["kinds"]) > 1
    assert done.returncode == 3, done.stderr
    assert 0.2 < spent <= 1.0, "errors with status 500 count at their worst case, and are not billed"


def test_exhausted_budget_exits_3_and_prints_the_command_to_resume(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, **make_priced_budget(usd=0.5))
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
def test_raised_budget_resumes_the_run_and_pays_only_for_the_difference(
    tmp_path: Path, kind: str, small: float, large: float
) -> None:
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, models=PRICED)
        complete_run = run_spec(path, tmp_path / "whole")
        needed = provider.stats()["billed"]["answers"]
        with pytest.raises(BudgetExhausted, match=rf"budget\.{kind}"):
            run_spec(path, tmp_path / "results", f"budget.{kind}={small}")
        first = provider.stats()["billed"]["answers"] - needed
        resumed = run_spec(path, tmp_path / "results", f"budget.{kind}={large}")
        assert 0 < first < needed
        assert provider.stats()["billed"]["answers"] == 2 * needed
    assert derived_files(resumed.folder.path) == derived_files(complete_run.folder.path)


@pytest.mark.full
def test_show_and_leaderboard_name_the_budget_stop_and_the_resume_command(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        spec_file(tmp_path, provider.base_url, size=4)
        options = ("--results", "mine")
        done = run_cli("spec.yaml", "budget.completions=7", "-q", *options, cwd=tmp_path)
        assert "larger budget: nip-run run spec.yaml budget.completions=N --results mine\n" in done.stderr
        run = only_run(tmp_path / "mine")
        show = run_cli("show", "last", *options, cwd=tmp_path)
        assert "interrupted: stopped by its budget (7 of 7 completions)\n" in show.stdout
        assert (
            f"no results yet; resume with: nip-run mine/runs/{run.name} budget.completions=N --results mine"
            in show.stderr
        )
        assert "unfinished: stopped by its budget (7 of 7" in run_cli("leaderboard", *options, cwd=tmp_path).stdout
        resumed = run_cli(f"mine/runs/{run.name}", "budget.completions=1000", "-q", *options, cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert only_run(tmp_path / "mine") == run
    assert "stopped by" not in run_cli("show", "last", *options, cwd=tmp_path).stdout


@pytest.mark.full
def test_rerun_with_the_same_budget_spends_only_the_remainder(tmp_path: Path) -> None:
    with run_batch_provider(faults=FAULTS) as provider:
        path = spec_file(tmp_path, provider.base_url, size=30, **make_priced_budget(usd=1.0))
        for _ in range(4):
            with pytest.raises(BudgetExhausted):
                run_spec(path, tmp_path / "results")
        assert provider.billed_usd(IN, OUT) <= 1.0


def test_token_budget_limits_billed_tokens(tmp_path: Path) -> None:
    with run_batch_provider(faults=FAULTS) as provider:
        path = spec_file(tmp_path, provider.base_url, size=30, **make_priced_budget(tokens=20_000))
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results")
        billed = provider.stats()["billed"]
    assert 5_000 < billed["prompt_tokens"] + billed["completion_tokens"] <= 20_000


def test_completions_budget_counts_every_call(tmp_path: Path) -> None:
    with run_batch_provider(faults={"server_error": 0.2}) as provider:
        path = spec_file(tmp_path, provider.base_url, budget={"completions": 20})
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results")
        assert provider.stats()["chat"] == 20


@pytest.mark.full
def test_call_without_reported_usage_is_charged_at_its_worst_case(tmp_path: Path) -> None:
    priced = {"m": {"price": {"input": 0.0, "output": 1e6}, "max_completion_tokens": 100}}  # a call may cost 100
    with run_chat_server(usage=False) as server:
        spec_file(tmp_path, server.base_url, size=20, models=priced, budget={"usd": 500})
        for _ in range(3):
            assert nip_run("spec.yaml", "-q", cwd=tmp_path).returncode == 3
        assert server.requests == 5


def test_unfinished_run_records_its_cost_and_its_worst_case_separately(tmp_path: Path) -> None:
    priced = {"m": {"price": {"input": 0.0, "output": 1e6}, "max_completion_tokens": 100}}  # a call may cost 100
    with run_chat_server(usage=False) as server:
        path = spec_file(tmp_path, server.base_url, size=20, models=priced, budget={"usd": 500})
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results")
    run = RunFolder(only_run(tmp_path / "results"))
    tokens = sum(record["usage"][1] for record in journal_records(run.path) if record["kind"] == "call")
    assert run.manifest().cost_usd == pytest.approx(tokens)
    assert 0 < tokens < (run.manifest().cost_usd_at_most or 0) == pytest.approx(500)


def test_failed_calls_are_no_answers_and_their_cost_counts_after_each_resume(tmp_path: Path) -> None:
    retry = {"transient": {"first_wait": 0.01, "max_wait": 0.01, "attempts": 2}, "breaker": {"failures": 1000}}
    with run_chat_server(kind="server_error", after=3) as server:
        path = spec_file(tmp_path, server.base_url, size=6, models=PRICED, retry=retry)
        runs = [run_spec(path, tmp_path / "results", *SOLO_OVERRIDES) for _ in range(2)]
        with pytest.raises(BudgetExhausted):
            run_spec(path, tmp_path / "results", *SOLO_OVERRIDES, f"budget.usd={runs[-1].manifest.cost_usd_at_most}")
    run = RunFolder(only_run(tmp_path / "results"))
    charges = [record["charged"][0] for record in journal_records(run.path) if record["kind"] == "failure"]
    assert len(charges) == 12
    manifests = [*(result.manifest for result in runs), run.manifest()]
    for failures, manifest in zip((6, 12, 12), manifests, strict=True):
        assert (manifest.completions, manifest.failed_calls) == (3, failures if manifest.status != "interrupted" else 0)
        assert manifest.cost_usd_at_most == pytest.approx((manifest.cost_usd or 0) + sum(charges[:failures]))


@pytest.mark.full
def test_sufficient_budget_changes_no_results(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        unlimited = run_spec(spec_file(tmp_path, provider.base_url, models=PRICED), tmp_path / "free")
        limited = run_spec(spec_file(tmp_path, provider.base_url, **make_priced_budget(usd=100.0)), tmp_path / "bound")
        usd = provider.billed_usd(IN, OUT) / 2
    assert derived_files(unlimited.folder.path) == derived_files(limited.folder.path)
    assert limited.manifest.cost_usd == pytest.approx(usd)


def test_started_games_finish_before_new_ones_when_the_budget_is_short(tmp_path: Path) -> None:
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
def test_sweep_points_share_one_budget(tmp_path: Path) -> None:
    long_timeout = "models.m.timeout=30"  # a timeout on a busy machine would be charged at its worst case
    with run_batch_provider() as provider:
        spec_file(
            tmp_path,
            provider.base_url,
            size=4,
            sweep={"seed": [1, 2, 3, 4]},
            rollouts={"concurrency": 4},
            **make_priced_budget(usd=0.9),
        )
        done = nip_run_here("spec.yaml", "-q", long_timeout, cwd=tmp_path)
        first = provider.billed_usd(IN, OUT)
        second_result = nip_run_here("spec.yaml", "-q", "budget.usd=1.4", long_timeout, cwd=tmp_path)
        second = provider.billed_usd(IN, OUT)
    assert (done.returncode, second_result.returncode) == (3, 3), done.stderr + second_result.stderr
    assert 0.4 < first <= 0.9 < second <= 1.4


@pytest.mark.full
def test_points_of_a_sweep_can_wait_for_the_shared_budget(tmp_path: Path) -> None:
    """Calls of both points, each in its own event loop, wait until other calls are settled."""
    solo = {
        "protocol": {"use": "solo_verifier", "max_message_rounds": None}, "agents": {"prover": None},
        "prompts": "prompts/code_validation/solo_verifier", "models": PRICED,
    }  # fmt: skip
    with run_batch_provider(latency=0.05) as provider:
        path = spec_file(tmp_path, provider.base_url, size=6, **solo)
        call = (run_spec(path, tmp_path / "one").manifest.cost_usd or 0) / 6
        spec_file(tmp_path, provider.base_url, size=6, sweep={"seed": [1, 2]}, **solo)
        # Each of the 12 calls reserves four times its final cost.
        done = nip_run_here("spec.yaml", "-q", f"budget.usd={18 * call:.6f}", cwd=tmp_path)
        assert provider.stats()["chat"] <= 18
    assert done.returncode == 0, done.stderr


def test_budget_can_be_used_in_several_event_loops() -> None:
    budget = Budget(BudgetSettings(completions=100, usd=1.0))
    reservation = UsageTotals(0.8, 0, 1)

    async def complete_two_calls() -> None:
        async def complete_call() -> None:
            await budget.reserve(reservation)
            await asyncio.sleep(0)
            budget.settle(reservation, UsageTotals(0.01, 0, 1))

        await asyncio.gather(complete_call(), complete_call())

    for _ in range(3):
        asyncio.run(complete_two_calls())
    assert budget.spent.completions == 6


@pytest.mark.parametrize(
    ("budget", "model", "message"),
    [
        ({"usd": 1.0}, {"max_completion_tokens": 60}, r"price for model 'tiny'.*models\.m\.price"),
        ({"usd": 1.0}, {"price": {"input": 1, "output": 1}}, r"models\.m\.max_completion_tokens"),
        ({"tokens": 1000}, {}, r"models\.m\.max_completion_tokens"),
    ],
)
def test_spec_with_an_unbounded_cost_is_rejected_before_any_call(
    tmp_path: Path, budget: dict[str, Any], model: dict[str, Any], message: str
) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9/v1", budget=budget, models={"m": model})
    with pytest.raises(SpecError, match=message):
        load_spec(path)
    done = nip_run_here("check", "spec.yaml", cwd=tmp_path)
    assert done.returncode == 2
    assert not (tmp_path / "results").exists()


def test_free_model_needs_no_price_and_no_token_limit(tmp_path: Path) -> None:
    assert run_spec(spec_file(tmp_path, budget={"usd": 0.01}), tmp_path / "results").manifest.cost_usd == 0


def test_budget_counts_generated_answers_at_the_price_in_the_spec(tmp_path: Path) -> None:
    path = spec_file(tmp_path, models={"m": {"price": {"input": IN, "output": OUT}}})
    whole = run_spec(path, tmp_path / "whole").manifest
    assert whole.cost_usd is not None
    assert whole.cost_usd_at_most == whole.cost_usd > 0
    with pytest.raises(BudgetExhausted):
        run_spec(path, tmp_path / "results", f"budget.usd={whole.cost_usd / 2}")
    stopped = RunFolder(only_run(tmp_path / "results")).manifest()
    assert 0 < (stopped.cost_usd or 0) <= whole.cost_usd / 2
    assert run_spec(path, tmp_path / "results", f"budget.usd={whole.cost_usd * 2}").manifest.cost_usd == whole.cost_usd


def test_completions_budget_needs_no_price_and_no_token_limit(tmp_path: Path) -> None:
    spec = load_spec(spec_file(tmp_path, "http://127.0.0.1:9/v1", budget={"completions": 5}))
    assert spec.experiment.budget.completions == 5


@pytest.mark.full
def test_replay_spends_nothing_of_a_budget(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        first = run_spec(spec_file(tmp_path, provider.base_url), tmp_path / "results")
        needed = provider.requests
        done = nip_run_here("spec.yaml", "-q", "--replay", first.folder.run_id, "budget.completions=3", cwd=tmp_path)
        assert provider.requests == needed
    assert done.returncode == 0, done.stderr


@pytest.mark.full
def test_answer_from_the_cache_spends_nothing_of_a_budget(tmp_path: Path) -> None:
    with run_batch_provider() as provider:
        path = spec_file(tmp_path, provider.base_url, cache="cache.sqlite")
        run_spec(path, tmp_path / "first")
        needed = provider.requests
        run_spec(path, tmp_path / "second", "budget.completions=1")
        assert provider.requests == needed


# Unit tests


SETTINGS = ModelSettings(
    model="tiny", base_url="http://127.0.0.1:9/v1", max_completion_tokens=50, price=Price(input=1.0, output=2.0)
)
REQUEST = Request("m", ({"role": "user", "content": "Ünïcode"},), SampleKey("p", 0, 0, "verifier", 0))


def compute_worst_case(request: Request, settings: ModelSettings = SETTINGS) -> UsageTotals:
    return CallCosts({"m": settings}).worst_case(request)


def test_worst_case_includes_tools_in_the_request_body() -> None:
    tools = {"tools": [{"type": "function", "function": {"name": "look", "description": "x" * 1000}}]}
    assert (
        compute_worst_case(REQUEST, replace(SETTINGS, extra_body=tools)).tokens
        >= compute_worst_case(REQUEST).tokens + 1000
    )


def test_worst_case_counts_one_token_per_byte_and_full_length_answers() -> None:
    assert compute_worst_case(REQUEST).tokens >= len("Ünïcode".encode()) + 50
    many = Request("m", REQUEST.messages, REQUEST.sample, n=4)
    assert compute_worst_case(many).tokens - compute_worst_case(REQUEST).tokens == 150
    assert compute_worst_case(REQUEST).completions == 1


def test_listed_prices_apply_only_to_openais_server() -> None:
    assert price_of(ModelSettings(model="gpt-4o-mini-2024-07-18")) == price_of(ModelSettings(model="gpt-4o-mini"))
    assert price_of(ModelSettings(model="gpt-4o-mini", base_url="http://127.0.0.1:9/v1")) is None
    regional_url = "https://eu.api.openai.com/v1"  # newer models cost 10 % more here, which the list does not include
    assert price_of(ModelSettings(model="gpt-4o-mini", base_url=regional_url)) is None
    assert price_of(ModelSettings(model="unheard-of")) is None
    own_price = Price(input=9.0, output=9.0)
    assert price_of(ModelSettings(model="gpt-4o-mini", price=own_price)) == own_price


def charge_call(budget: Budget, outcome: Completion | NipRunError) -> None:
    async def complete(_: Request) -> Completion:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    complete_in_budget = within_budget(complete, budget, CallCosts({"m": SETTINGS}))
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome)):
            asyncio.run(as_coroutine(complete_in_budget(REQUEST)))
    else:
        asyncio.run(as_coroutine(complete_in_budget(REQUEST)))


def test_call_is_charged_by_the_usage_the_server_reports() -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    charge_call(budget, Completion((Choice("x", "stop"),), "tiny", Usage(10, 5)))
    assert budget.spent == UsageTotals(20e-6, 15, 1, prompt_tokens=10, completion_tokens=5)


def test_call_without_an_answer_is_charged_at_its_worst_case() -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    charge_call(budget, TransientError("cut off"))
    assert budget.spent == compute_worst_case(REQUEST)


@pytest.mark.parametrize("status", [408, 500, 502, 503, 504, 524])
def test_call_with_a_server_error_or_timeout_is_charged_at_its_worst_case(status: int) -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    charge_call(budget, TransientError("timed out", status=status))
    assert budget.spent == compute_worst_case(REQUEST)


@pytest.mark.parametrize(
    "error",
    [
        TransientError("busy", status=429),
        MalformedError("no", status=400),
        ContextExceededError("too long", status=500),
        RefusedError("no", status=500),
        ProviderRefusal("odd characters", of_one_call=MalformedError("odd characters", status=400)),
        ProviderRefusal("unknown key"),
    ],
)
def test_call_refused_by_the_server_costs_no_money(error: NipRunError) -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    charge_call(budget, error)
    assert budget.spent == UsageTotals(0.0, 0, 1)


@pytest.mark.parametrize("error", [TransientError("no route to host", unreachable=True), Stopped()])
def test_call_that_was_not_sent_does_not_count(error: NipRunError) -> None:
    budget = Budget(BudgetSettings(usd=1.0))
    charge_call(budget, error)
    assert budget.spent == UsageTotals()


def test_calls_that_wait_for_a_rate_when_their_run_stops_are_not_sent_and_do_not_count() -> None:
    """Another run with the same server goes on, so only the switch of this run is stopped."""

    async def stop_run() -> None:
        settings = replace(SETTINGS, requests_per_minute=60, tokens_per_minute=6_000)
        budget, servers, stop, sent = Budget(BudgetSettings(usd=1.0)), Servers(8), StopSwitch().create_child(), []

        async def complete(request: Request) -> Completion:
            sent.append(request)
            return Completion((Choice("x", "stop"),), "tiny", Usage(10, 5))

        admission = LocalAdmission(CallCosts({"m": settings}), servers, Retry(), budget, stop.sleep_unless_stopped)
        call = admission.wrap(complete, None)
        tasks = [asyncio.create_task(as_coroutine(call(REQUEST))) for _ in range(50)]
        await run_loop_turns(50)
        stop.stop()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert 0 < len(sent) < 10
        assert sum(isinstance(result, Stopped) for result in results) == 50 - len(sent)
        assert budget.spent.completions == len(sent)
        limit = servers.limit("m", settings, Retry())
        assert limit._buckets["requests"]._level <= len(sent)
        assert limit._buckets["tokens"]._level <= 15 * len(sent)

    asyncio.run(stop_run())


def test_cancelled_call_is_settled_and_leaves_no_reservation() -> None:
    budget = Budget(BudgetSettings(completions=2))

    async def complete_never(_: Request) -> Completion:
        await asyncio.sleep(60)
        raise AssertionError

    complete_in_budget = within_budget(complete_never, budget, CallCosts({"m": SETTINGS}))

    async def cancel_call() -> None:
        task = asyncio.create_task(as_coroutine(complete_in_budget(REQUEST)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await budget.reserve(UsageTotals(0.0, 0, 1))
        with pytest.raises(BudgetExhausted):
            budget.settle(UsageTotals(0.0, 0, 1), UsageTotals(0.0, 0, 1))
            await budget.reserve(UsageTotals(0.0, 0, 1))

    asyncio.run(cancel_call())


def test_spent_and_reserved_money_never_exceeds_the_budget() -> None:
    import random

    async def complete_calls() -> float:
        rng, budget, max_total = random.Random(3), Budget(BudgetSettings(usd=1.0)), 0.0
        open_calls: set[int] = set()

        async def complete_call(index: int) -> None:
            nonlocal max_total
            max_cost = UsageTotals(rng.uniform(0.01, 0.3), 0, 1)
            await budget.reserve(max_cost)
            open_calls.add(index)
            max_total = max(max_total, budget.spent.usd + budget._reserved.usd)
            await run_loop_turns(rng.randrange(40))
            open_calls.discard(index)
            budget.settle(max_cost, UsageTotals(max_cost.usd * rng.random() * 0.1, 0, 1))

        results = await asyncio.gather(*(complete_call(i) for i in range(200)), return_exceptions=True)
        assert all(e is None or isinstance(e, BudgetExhausted) for e in results)
        assert budget._reserved == UsageTotals()
        return max_total

    assert asyncio.run(complete_calls()) <= 1.0 + 1e-9
