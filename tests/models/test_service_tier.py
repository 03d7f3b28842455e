"""The keys `service_tier` and `prompt_cache_key`: requests, costs and validation."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from runner.base.errors import SpecError
from runner.game.prompts.chat import ChatMessage
from runner.models import prices
from runner.models.interface import Request, SampleKey
from runner.models.layers.cache import request_fields
from runner.models.prices import ListedPrice, price_of
from runner.models.request_body import request_body
from runner.models.settings import ModelSettings
from runner.rollouts.plan import Plan
from runner.spec.loader import load_spec
from tests.models.test_bills import SOLO, make_reply, make_usage
from tests.support.openai_calls import serve_openai_at
from tests.support.runs import run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

CHAT = (ChatMessage(role="user", content="q"),)
MODEL = {"model": "gpt-5.6-sol", "base_url": None, "max_completion_tokens": 100_000}


def make_settings(tier: str | None = "flex", key: str | None = "debates", **changes: Any) -> ModelSettings:
    return ModelSettings(model="gpt-5.6-sol", service_tier=tier, prompt_cache_key=key, **changes)


def load_problems(folder: Path, **model: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        load_spec(spec_file(folder, "http://127.0.0.1:1/v1", models={"m": {**MODEL, **model}}))
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.gate
@pytest.mark.parametrize(("reported", "usd"), [("default", 0.60), ("flex", 0.30), (None, 0.30)])
def test_call_is_billed_at_the_reported_or_else_the_requested_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reported: str | None, usd: float
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-of-tiers")
    monkeypatch.setattr(prices, "today", lambda: date(2026, 11, 1))
    model = {**MODEL, "service_tier": "flex", "prompt_cache_key": "debates"}
    with run_chat_server(reply=make_reply(make_usage(100_000, 10_000, reported)), record=2) as server:
        serve_openai_at(monkeypatch, server.base_url)
        result = run_spec(
            spec_file(tmp_path, server.base_url, size=2, models={"m": model}, **SOLO), tmp_path / "results"
        )
        (sent,) = server.recorded_requests()
    body = json.loads(sent["body"])
    assert (body["service_tier"], body["prompt_cache_key"]) == ("flex", "debates")
    assert result.manifest.cost_usd == pytest.approx(usd)
    (row,) = table(result.folder.path, "completions")
    assert row["service_tier"] == (reported or "flex")


@pytest.mark.gate
@pytest.mark.parametrize(("first", "later", "usd"), [("flex", "priority", 1.50), (None, "flex", 0.90)])
def test_resumed_run_prices_earlier_answers_at_their_requested_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: str | None, later: str, usd: float
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-of-tiers")
    monkeypatch.setattr(prices, "today", lambda: date(2026, 11, 1))
    with run_chat_server(reply=make_reply(make_usage(100_000, 10_000))) as server:
        serve_openai_at(monkeypatch, server.base_url)
        path = spec_file(tmp_path, server.base_url, size=2, models={"m": {**MODEL, "service_tier": first}}, **SOLO)
        run_spec(path, tmp_path / "results")
        overrides = (f"models.m.service_tier={later}", "rollouts.per_datapoint=2")
        result = run_spec(path, tmp_path / "results", *overrides)
    assert result.manifest.cost_usd == pytest.approx(usd)
    assert [row["service_tier"] for row in table(result.folder.path, "completions")] == [first, later]


def test_budget_reserves_the_highest_price_the_server_may_bill() -> None:
    prices_by_tier = {
        tier: price_of(make_settings(tier), date(2026, 11, 1)) for tier in (None, "flex", "priority", "auto")
    }
    assert all(isinstance(price, ListedPrice) for price in prices_by_tier.values())
    costs = {tier: price.max_cost(100_000, 10_000) for tier, price in prices_by_tier.items() if price is not None}
    assert costs["flex"] == costs[None] < costs["priority"] == costs["auto"]


def test_keys_do_not_change_the_run_identity_or_cached_answers(tmp_path: Path) -> None:
    def plan_id(**model: Any) -> str:
        return Plan(load_spec(spec_file(tmp_path, models={"m": {**MODEL, "provider": "openai", **model}}))).run_id

    assert plan_id() == plan_id(service_tier="priority", prompt_cache_key="other")
    request = Request("m", CHAT, SampleKey("d", 0, 0, "verifier", 0))
    assert request_fields(request, make_settings()) == request_fields(request, make_settings(None, None))


def test_anthropic_accepts_the_tier_and_rejects_the_cache_key(tmp_path: Path) -> None:
    settings = make_settings("standard_only", None, provider="anthropic", max_tokens=9)
    assert json.loads(request_body(settings, CHAT))["service_tier"] == "standard_only"
    (problem,) = load_problems(
        tmp_path, provider="anthropic", model="claude-opus-5", chat_format="alternating", prompt_cache_key="debates"
    )
    assert "provider anthropic has no prompt_cache_key" in problem


def test_tier_without_a_listed_price_requires_a_price(tmp_path: Path) -> None:
    (problem,) = load_problems(tmp_path, service_tier="scale")
    assert "no price of gpt-5.6-sol at service tier 'scale', only at auto, default, fast, flex, priority" in problem
    for model in ({"service_tier": "auto"}, {"service_tier": "scale", "price": {"input": 1.0, "output": 2.0}}):
        load_spec(spec_file(tmp_path, "http://127.0.0.1:1/v1", models={"m": {**MODEL, **model}}))


def test_service_tier_and_batch_exclude_each_other(tmp_path: Path) -> None:
    (problem,) = load_problems(tmp_path, service_tier="flex", batch=True)
    assert "remove one of service_tier and batch" in problem


@pytest.mark.parametrize("name", ["service_tier", "prompt_cache_key"])
def test_field_can_be_set_by_its_key_or_in_extra_body_but_not_both(tmp_path: Path, name: str) -> None:
    (problem,) = load_problems(tmp_path, **{name: "flex"}, extra_body={name: "flex"})
    assert f"models.m.{name} sets the same field; remove one of the two" in problem
    path = spec_file(tmp_path, "http://127.0.0.1:1/v1", models={"m": {**MODEL, "extra_body": {name: "flex"}}})
    assert load_spec(path).experiment.models["m"].requested_tier == ("flex" if name == "service_tier" else None)
