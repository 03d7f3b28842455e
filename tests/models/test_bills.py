"""The cost of a call at the list prices of 2026-11-01: each bill below was calculated by hand from these rates.

Dollars for a million tokens:

| model | tier | prompt | input | cached | cache write | output | audio in | audio out |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
| gpt-5.6-sol | standard | up to 272,000 | 4 | 0.40 | 5 | 20 | | |
| gpt-5.6-sol | standard | longer | 8 | 0.80 | 10 | 30 | | |
| gpt-5.6-sol | flex | up to 272,000 | 2 | 0.20 | 2.50 | 10 | | |
| gpt-5.6-sol | flex | longer | 4 | 0.40 | 5 | 15 | | |
| gpt-5.6-sol | priority | up to 272,000 | 8 | 0.80 | 10 | 40 | | |
| gpt-audio | standard | any | 2.50 | | | 10 | 32 | 64 |
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from runner.base.errors import BudgetExhausted, CallError
from runner.models import prices
from runner.models.costs import CallCosts, cost_of_failure
from runner.models.interface import Choice, Completion, Request, SampleKey, Usage
from runner.models.plausible_usage import checked_usage
from runner.models.prices import ListedPrice, price_list_version, price_of
from runner.models.providers.answer_reader import read_completion
from runner.models.settings import ModelSettings, Price
from runner.models.usage_totals import UsageTotals
from runner.runs.finished.selection import ReplayOf
from runner.runs.finished.stored_problems import load_problems
from tests.support.openai_calls import serve_openai_at
from tests.support.processes import nip_run_here, python
from tests.support.runs import journal_records, run_spec, table
from tests.support.servers.batch_client import run_batch_provider
from tests.support.servers.chat_client import run_chat_server
from tests.support.specs import spec_file

DAY = date(2026, 11, 1)
TEXT = "It adds one where two are asked for.\n\nDecision: reject"
"""54 bytes."""
SOLO: Mapping[str, Any] = {
    "protocol": {"use": "solo_verifier", "max_message_rounds": None}, "agents": {"prover": None},
    "prompts": "prompts/code_validation/solo_verifier", "dataset": {"limit": 1},
}  # fmt: skip


def make_usage(prompt: Any, answer: Any, tier: str | None = None, **details: int) -> dict[str, Any]:
    """Build the usage and tier of an OpenAI answer; `details` are counts such as `cached`, `written` or `audio_in`."""
    names = {"cached": "cached_tokens", "written": "cache_write_tokens", "audio_in": "audio_tokens"}
    prompt_details = {names[name]: count for name, count in details.items() if name in names}
    names = {"reasoning": "reasoning_tokens", "audio_out": "audio_tokens"}
    completion_details = {names[name]: count for name, count in details.items() if name in names}
    usage_counts = {
        "prompt_tokens": prompt, "completion_tokens": answer,
        "prompt_tokens_details": prompt_details, "completion_tokens_details": completion_details,
    }  # fmt: skip
    return {"usage": usage_counts, **({} if tier is None else {"service_tier": tier})}


def make_counts(prompt: Any, answer: Any, **more: Any) -> dict[str, Any]:
    """Build the usage of a server that does not follow OpenAI's format."""
    return {"usage": {"prompt_tokens": prompt, "completion_tokens": answer, **more}}


def make_reply(fields: Mapping[str, Any], choices: int = 1) -> dict[str, Any]:
    message = {"role": "assistant", "content": TEXT}
    choice_list = [{"index": index, "message": message, "finish_reason": "stop"} for index in range(choices)]
    return {"id": "c", "object": "chat.completion", "model": "m", "choices": choice_list, **fields}


@pytest.fixture
def listed_day(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set the day of the price list to the one that the bills were calculated for."""
    monkeypatch.setattr(prices, "today", lambda: DAY)


@pytest.fixture
def at_openai(monkeypatch: pytest.MonkeyPatch, listed_day: None) -> pytest.MonkeyPatch:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-test-of-bills")
    return monkeypatch


class Bill(NamedTuple):
    fields: Mapping[str, Any]
    usd: float
    columns: Mapping[str, Any] = {}
    """Columns of the call's row that earlier versions did not have."""
    choices: int = 1
    model: str = "gpt-5.6-sol"


BILLS = {
    # 100,000 x 4 + 10,000 x 20
    "input and output": Bill(make_usage(100_000, 10_000), 0.60),
    # 20,000 x 4 + 80,000 x 0.40 + 1,000 x 20
    "cached input": Bill(make_usage(100_000, 1_000, cached=80_000), 0.132),
    # 100,000 x 5 + 1,000 x 20
    "cache writes": Bill(make_usage(100_000, 1_000, written=100_000), 0.52, {"cache_write_tokens": 100_000}),
    # 50,000 x 0.40 + 100,000 x 5 + 50,000 x 4 + 5,000 x 20
    "cached, written and fresh": Bill(
        make_usage(200_000, 5_000, cached=50_000, written=100_000), 0.82, {"cache_write_tokens": 100_000}
    ),
    # 10,000 x 4 + 50,000 x 20
    "reasoning, which the answer's count includes": Bill(
        make_usage(10_000, 50_000, reasoning=40_000), 1.04, {"reasoning_tokens": 40_000}
    ),
    # 10,000 x 4 + (10,000 + 30,000) x 20
    "reasoning, which the answer's count leaves out": Bill(
        make_usage(10_000, 10_000, reasoning=30_000), 0.84, {"reasoning_tokens": 30_000}
    ),
    # 10,000 x 4 + (10,000 + 4,000) x 20
    "reasoning, which only the total includes": Bill(
        make_counts(10_000, 10_000, total_tokens=24_000, completion_tokens_details={"reasoning_tokens": 4_000}), 0.32,
        {"reasoning_tokens": 4_000},
    ),
    # 10,000 x 4 + (10,000 + 4,000) x 20
    "thoughts, which only the total includes": Bill(make_counts(10_000, 10_000, total_tokens=24_000), 0.32),
    # 10,000 x 4 + 14,000 x 20
    "a prompt and a total": Bill(make_counts(10_000, None, total_tokens=24_000), 0.32),
    # 20,000 x 4 + 80,000 x 0.40 + 1,000 x 20
    "cached, as DeepSeek names it": Bill(
        make_counts(100_000, 1_000, prompt_cache_hit_tokens=80_000, prompt_cache_miss_tokens=20_000), 0.132
    ),
    "cached, as Moonshot places it": Bill(make_counts(100_000, 1_000, cached_tokens=80_000), 0.132),
    # 10,000 x 4 + 80,000 x 0.40 + 10,000 x 5 + 1,000 x 20
    "Anthropic's names, which the prompt includes": Bill(
        make_counts(
            100_000, 1_000, total_tokens=101_000, cache_read_input_tokens=80_000, cache_creation_input_tokens=10_000
        ), 0.142, {"cache_write_tokens": 10_000},
    ),
    # the same
    "Anthropic's names, which only the total includes": Bill(
        make_counts(
            10_000, 1_000, total_tokens=101_000, cache_read_input_tokens=80_000, cache_creation_input_tokens=10_000
        ), 0.142, {"cache_write_tokens": 10_000},
    ),
    "Anthropic's names, which the prompt leaves out": Bill(
        make_counts(10_000, 1_000, cache_read_input_tokens=80_000, cache_creation_input_tokens=10_000), 0.142,
        {"cache_write_tokens": 10_000},
    ),
    # 80,000 x 0.40 + 20,000 x 5 + 1,000 x 20: the written tokens are also cached ones
    "tokens that are cached and written": Bill(
        make_usage(100_000, 1_000, cached=80_000, written=80_000), 0.152, {"cache_write_tokens": 80_000}
    ),
    # 272,000 x 4 + 1,000 x 20
    "the longest short prompt": Bill(make_usage(272_000, 1_000), 1.108),
    # 272,001 x 8 + 1,000 x 30
    "the shortest long prompt": Bill(make_usage(272_001, 1_000), 2.206008),
    # 100,000 x 0.80 + 200,000 x 10 + 100,000 x 8 + 10,000 x 30
    "a long prompt, cached and written": Bill(
        make_usage(400_000, 10_000, cached=100_000, written=200_000), 3.18, {"cache_write_tokens": 200_000}
    ),
    # 100,000 x 2 + 10,000 x 10
    "flex": Bill(make_usage(100_000, 10_000, "flex"), 0.30, {"service_tier": "flex"}),
    # 100,000 x 4 + 200,000 x 0.40 + 10,000 x 15
    "flex, a long prompt, cached": Bill(
        make_usage(300_000, 10_000, "flex", cached=200_000), 0.63, {"service_tier": "flex"}
    ),
    # 100,000 x 8 + 10,000 x 40
    "priority": Bill(make_usage(100_000, 10_000, "priority"), 1.20, {"service_tier": "priority"}),
    # 100,000 x 4 + 10,000 x 20
    "the tier named default": Bill(make_usage(100_000, 10_000, "default"), 0.60, {"service_tier": "default"}),
    # 4,000 x 2.50 + 6,000 x 32 + 1,000 x 10 + 4,000 x 64
    "audio": Bill(
        make_usage(10_000, 5_000, audio_in=6_000, audio_out=4_000), 0.468,
        {"audio_input_tokens": 6_000, "audio_output_tokens": 4_000}, model="gpt-audio",
    ),
    # 100,000 x 4 + 30,000 x 20, for one call
    "choices that nobody requested": Bill(make_usage(100_000, 30_000), 1.00, choices=3),
}  # fmt: skip


@pytest.mark.parametrize("name", BILLS)
def test_call_is_charged_its_bill_by_the_price_list(at_openai: pytest.MonkeyPatch, name: str) -> None:
    bill = BILLS[name]
    settings = ModelSettings(model=bill.model, max_completion_tokens=100_000)
    request = Request("m", ({"role": "user", "content": "q"},), SampleKey("d", 0, 0, "verifier", 0))
    content = json.dumps(make_reply(bill.fields, bill.choices)).encode()
    completion = read_completion(content, {}, request, settings, latency_ms=1.0)
    assert CallCosts({"m": settings}).charge(request, completion).usd == pytest.approx(bill.usd, abs=1e-9)


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", BILLS)
def test_run_costs_its_bill_by_the_price_list(tmp_path: Path, at_openai: pytest.MonkeyPatch, name: str) -> None:
    bill = BILLS[name]
    model = {"model": bill.model, "base_url": None, "max_completion_tokens": 100_000}
    with run_chat_server(reply=make_reply(bill.fields, bill.choices)) as server:
        serve_openai_at(at_openai, server.base_url)
        spec = spec_file(tmp_path, server.base_url, size=2, models={"m": model}, **SOLO)
        result = run_spec(spec, tmp_path / "results")
    (row,) = table(result.folder.path, "completions")
    assert result.manifest.cost_usd == pytest.approx(bill.usd, abs=1e-9)
    assert result.manifest.completions == 1
    assert result.manifest.prices == price_list_version()
    optional_columns = (
        "cache_write_tokens",
        "reasoning_tokens",
        "audio_input_tokens",
        "audio_output_tokens",
        "service_tier",
    )
    assert {key: row[key] for key in optional_columns if row[key] is not None} == bill.columns
    for key, count in bill.columns.items():
        assert key == "service_tier" or getattr(result.manifest, key) == count
    assert load_problems(result.folder) == []


IMPOSSIBLE: Mapping[str, Mapping[str, Any]] = {
    "zero": make_usage(0, 0),
    "absent": {},
    "null": {"usage": None},
    "one token": make_usage(1, 1),
    "negative": make_usage(-100, -100),
    "not whole": make_usage(1000.5, 10.5),
    "text": make_usage("1000", "10"),
    "absurdly large": make_usage(10**12, 10**12),
    "too large to be read": make_usage(10**30, 10**30),
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_impossible_usage_is_replaced_by_a_marked_estimate(
    tmp_path: Path, at_openai: pytest.MonkeyPatch, name: str
) -> None:
    model = {"model": "gpt-5.6-sol", "base_url": None, "max_completion_tokens": 1_000}
    with run_chat_server(reply=make_reply(IMPOSSIBLE[name]), record=10) as server:
        serve_openai_at(at_openai, server.base_url)
        spec = spec_file(tmp_path, server.base_url, size=2, models={"m": model}, **SOLO)
        result = run_spec(spec, tmp_path / "results")
        (request,) = server.recorded_requests()
    texts = [message["content"].encode() for message in json.loads(request["body"])["messages"]]
    prompt = sum(len(text) // 4 + 5 for text in texts)
    answer = 14 if name != "one token" else 1  # 54 bytes are 14 tokens; one token for 54 bytes is possible
    (row,) = table(result.folder.path, "completions")
    assert (row["prompt_tokens"], row["completion_tokens"]) == (prompt, answer)
    assert row["usage_estimated"] is True
    assert result.manifest.cost_usd == pytest.approx((prompt * 4 + answer * 20) / 1e6)
    max_cost = (sum(len(text) + 16 for text in texts) * 5 + 1_000 * 20) / 1e6
    assert result.manifest.cost_usd_at_most == pytest.approx(max_cost)
    (estimate_problem,) = (problem for problem in load_problems(result.folder) if problem.kind == "estimated_usage")
    assert (estimate_problem.count, estimate_problem.of) == (1, 1)
    (call_record,) = (record for record in journal_records(result.folder.path) if record["kind"] == "call")
    assert call_record["usage"][:4] == [prompt, answer, 0, True]


@pytest.mark.sample(1)
@pytest.mark.parametrize("batch", [False, True])
@pytest.mark.parametrize(
    "reported",
    [
        {},
        {"prompt_tokens": 0, "completion_tokens": 0},
        {"prompt_tokens": 1, "completion_tokens": 1},
        {"prompt_tokens": -5, "completion_tokens": 3},
        {"prompt_tokens": 60, "completion_tokens": 1},
    ],
    ids=lambda reported: json.dumps(list(reported.values())),
)
def test_budget_holds_at_the_true_price_despite_wrong_reported_usage(
    tmp_path: Path, reported: dict[str, Any], batch: bool
) -> None:
    """Regression: a budget for 11 calls allowed 300, because the server reported zero tokens."""
    model = {
        "price": {"input": 100.0, "output": 400.0}, "max_completion_tokens": 60, "batch": batch,
        "batch_wait": 0.05, "batch_poll": 0.05,
    }  # fmt: skip
    with run_batch_provider(reported=reported) as provider:
        spec = spec_file(
            tmp_path, provider.base_url, size=40, models={"m": model}, budget={"usd": 1.0},
            rollouts={"concurrency": 4},
        )  # fmt: skip
        for _ in range(2):
            with pytest.raises(BudgetExhausted):
                run_spec(spec, tmp_path / "results")
        assert 0 < provider.billed_usd(100.0, 400.0) <= 1.0


def test_implausibly_low_token_count_is_replaced_by_an_estimate() -> None:
    """English text has about 5 bytes per token: 1,200 bytes cannot be 40 tokens, but can be 100."""
    text = "Look at the loop bound: " * 50
    request = Request("m", ({"role": "user", "content": text},), SampleKey("d", 0, 0, "prover", 0))
    for count, is_estimated in ((40, True), (96, False)):
        checked = checked_usage(Usage(count, count), request, [Choice(text, "stop")])
        assert checked.estimated is is_estimated
        assert (checked.prompt_tokens > count, checked.completion_tokens > count) == (is_estimated, is_estimated)
    long_word = "internationalization"
    assert not checked_usage(Usage(1, 1), replace(request, messages=()), [Choice(long_word, "stop")]).estimated


@pytest.mark.parametrize(("text", "tokens"), [("Это неверно. " * 100, 1_000), ("答案是错误的。" * 100, 700)])
def test_budget_counts_a_token_per_two_bytes_of_non_latin_scripts(text: str, tokens: int) -> None:
    """The server counts half as many tokens as the text has characters of its script."""
    settings = ModelSettings(model="m", base_url="http://127.0.0.1:9/v1", price=Price(input=1.0, output=1.0))
    request = Request("m", ({"role": "user", "content": text},), SampleKey("d", 0, 0, "prover", 0))
    completion = Completion((Choice(text, "stop"),), "m", Usage(tokens // 2, tokens // 2))
    assert CallCosts({"m": settings}).charge(request, completion).tokens >= 2 * tokens


def test_max_cost_bounds_the_cost_of_every_mix_of_token_classes() -> None:
    rng = random.Random(5)
    for _ in range(200):
        classes = ("cached_input", "cache_write", "reasoning", "audio_input", "audio_output")
        class_rates = {name: rng.choice((None, 0.0, rng.uniform(0, 9))) for name in classes}
        price = Price(input=rng.uniform(0, 9), output=rng.uniform(0, 9), **class_rates)
        cached, written, reasoning, audio_in, audio_out = (rng.choice((0, 300, 1_000)) for _ in range(5))
        token_usage = Usage(1_000, 1_000, cached, False, written, reasoning, audio_in, audio_out)
        assert price.cost_of(token_usage) <= price.max_cost(1_000, 1_000) * (1 + 1e-12)


def test_price_list_contains_retired_models() -> None:
    """The specs of the paper use these models and still need a cost estimate."""
    expected = {
        "gpt-4o": (2.50, 1.25, 10.00), "gpt-4o-mini": (0.15, 0.075, 0.60), "gpt-4.1": (2.00, 0.50, 8.00),
        "gpt-4.1-mini": (0.40, 0.10, 1.60), "gpt-4.1-nano": (0.10, 0.025, 0.40), "o3": (2.00, 0.50, 8.00),
        "o4-mini": (1.10, 0.275, 4.40), "gpt-5": (1.25, 0.125, 10.00), "gpt-5-mini": (0.25, 0.025, 2.00),
        "gpt-5-nano": (0.05, 0.005, 0.40),
    }  # fmt: skip
    for model, rates in expected.items():
        price = price_of(ModelSettings(model=model), DAY)
        assert isinstance(price, ListedPrice)
        listed_price = price.standard[0].price
        assert (listed_price.input, listed_price.cached_input, listed_price.output) == rates


def test_price_lookup_needs_no_network() -> None:
    code = (
        "import socket\n"
        "def refuse(*args, **kwargs): raise AssertionError('a socket was opened')\n"
        "socket.socket.connect = socket.getaddrinfo = refuse\n"
        "from runner.models.prices import price_of\n"
        "from runner.models.settings import ModelSettings\n"
        "assert price_of(ModelSettings(model='gpt-4o-mini')).max_cost(1000000, 0) == 0.15\n"
    )
    done = python(code)
    assert done.returncode == 0, done.stderr


def test_check_does_not_load_the_price_list_if_the_spec_sets_prices(tmp_path: Path) -> None:
    spec_file(tmp_path, "http://127.0.0.1:9/v1", models={"m": {"price": {"input": 1.0, "output": 2.0}}})
    code = (
        "import sys\nfrom runner.cli.main import main\n"
        "assert main(['check', 'spec.yaml']) == 0\nassert 'genai_prices' not in sys.modules\n"
    )
    done = python(code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_error_inside_an_answer_is_charged_at_its_worst_case() -> None:
    """A router that fails halfway answers with status 200 and bills the tokens generated until then."""
    settings = ModelSettings(model="m", price=Price(input=10.0, output=400.0))
    error = {"message": "upstream failed", "code": 502}
    worst_case = UsageTotals(completions=1, tokens=5_000, usd=1.5)
    request = Request("m", (), SampleKey("d", 0, 0, "prover", 0))
    for body in ({"choices": [{"error": error}]}, {"error": error}):
        for fields in (make_usage(300, 900), {}):
            content = json.dumps({**body, **fields}).encode()
            with pytest.raises(CallError) as raised:
                read_completion(content, {}, request, settings, latency_ms=1.0)
            assert cost_of_failure(worst_case, raised.value).usd == 1.5


ERROR_REPLIES = [
    ({"error": {"message": "upstream failed", "code": 502}}, 3),
    ({"choices": []}, 3),
    ({"choices": [{"message": {"content": "It ad"}, "finish_reason": "error"}]}, 3),
    ({"error": {"message": "flagged", "code": "content_filter"}}, 1),
]
"""Answers that are errors, and the number of attempts of the call."""


@pytest.mark.parametrize(("reply", "attempts"), ERROR_REPLIES)
def test_usage_of_an_error_is_recorded_and_charged_at_its_worst_case(
    tmp_path: Path, reply: dict[str, Any], attempts: int
) -> None:
    """Each call fails after 300 and 900 tokens, which cost (300 x 10 + 900 x 400) / 1e6 dollars."""
    model = {"price": {"input": 10.0, "output": 400.0}, "max_completion_tokens": 1_000}
    retry = {"transient": {"first_wait": 0.01, "max_wait": 0.01, "attempts": 3}}
    with run_chat_server(reply={**reply, **make_usage(300, 900)}) as server:
        rollouts = {"max_transport_failed": 1.0}
        spec = spec_file(
            tmp_path, server.base_url, size=2, models={"m": model}, retry=retry, rollouts=rollouts, **SOLO
        )  # fmt: skip
        result = run_spec(spec, tmp_path / "results")
    rows = table(result.folder.path, "completions")
    assert [(row["prompt_tokens"], row["completion_tokens"]) for row in rows] == [(300, 900)] * attempts
    assert result.manifest.cost_usd == pytest.approx(0.363 * attempts)
    assert (result.manifest.cost_usd_at_most or 0) >= 0.363 * attempts
    assert (result.manifest.completions, result.manifest.failed_calls) == (0, attempts)
    replay = run_spec(spec, tmp_path / "replays", replay=ReplayOf(result.path))
    counts = replay.manifest.cost_usd, replay.manifest.prompt_tokens, replay.manifest.failed_calls
    assert counts == (0.0, 300 * attempts, attempts)
    for folder in (result.path, replay.path):
        rebuilt = nip_run_here("verify", str(folder), cwd=tmp_path)
        assert rebuilt.returncode == 0, rebuilt.stdout + rebuilt.stderr
