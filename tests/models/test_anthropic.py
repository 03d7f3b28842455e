"""The provider `anthropic`: complete runs with the official client, against a server with the Messages API."""

from __future__ import annotations

import asyncio
import inspect
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import anthropic
import httpx2
import orjson
import pytest

from runner.base.errors import (
    BudgetExhausted,
    CallError,
    NipRunError,
    ProviderRefusal,
    SpecError,
    TransientError,
    UsageError,
)
from runner.game.prompts.chat import ChatMessage
from runner.models.answers import choices_of, reported_usage
from runner.models.client import ModelConnector
from runner.models.interface import Request, SampleKey, Usage
from runner.models.prices import price_of
from runner.models.providers.anthropic import AnthropicModel, make_client
from runner.models.providers.client_errors import map_client_error
from runner.models.request_body import request_body
from runner.models.retry_policy import Retry
from runner.models.settings import ModelSettings
from runner.registry.redaction.answer_fields import select_known_fields
from runner.runs.finished.selection import ReplayOf
from runner.spec.loader import load_spec
from tests.support.hang_guard import HANG_SECONDS
from tests.support.paths import ROOT
from tests.support.processes import nip_run_here, start_nip_run_silently, wait_until
from tests.support.runs import derived_files, journal_records, only_run, run_spec, table
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer
from tests.support.servers.messages_client import run_messages_server
from tests.support.specs import spec_file

PRICE = {"input": 1.0, "output": 5.0, "cached_input": 0.1, "cache_write": 1.25}
"""Dollars for a million tokens."""


def make_model_spec(server: LoopbackServer, **more: Any) -> dict[str, Any]:
    return {
        "provider": "anthropic", "model": "claude-haiku-4-5", "base_url": server.base_url, "max_tokens": 300,
        "timeout": 2 * HANG_SECONDS, "price": PRICE, **more,
    }  # fmt: skip


def write_spec(server: LoopbackServer, folder: Path, *, size: int = 4, **changes: Any) -> Path:
    settings = {"models": {"m": make_model_spec(server, **changes.pop("model", {}))}}
    return spec_file(folder, server.base_url, size=size, **settings, **changes)


def make_settings(server: LoopbackServer | None = None, **more: Any) -> ModelSettings:
    address = "http://127.0.0.1:9" if server is None else server.base_url
    common = {"provider": "anthropic", "model": "claude-haiku-4-5", "base_url": address, "max_tokens": 300}
    return ModelSettings(**{"timeout": HANG_SECONDS, "system_role": "system", **common, **more})


CHAT: Sequence[ChatMessage] = (
    {"role": "system", "content": "You are the verifier."},
    {"role": "user", "content": "Expert: It is right. Ünïcode \x00 too."},
)
LONGER_CHAT: Sequence[ChatMessage] = (
    *CHAT,
    {"role": "assistant", "content": "Why?"},
    {"role": "user", "content": "Expert: So."},
)


def complete(model_settings: ModelSettings, chat: Any = CHAT, on_headers: Any = None) -> Any:
    async def complete_once() -> Any:
        provider_model = AnthropicModel(model_settings, "m", 1, on_headers)
        try:
            return await provider_model.complete(Request("m", chat, SampleKey("p", 0, 0, "verifier", 0)))
        finally:
            await provider_model.close()

    return asyncio.run(complete_once())


# Requests


def test_request_body_has_a_cached_system_prompt_and_no_names() -> None:
    model_settings = make_settings(
        stop=("</answer>",), reasoning_effort="low", extra_body={"metadata": {"user_id": "u"}}
    )
    assert orjson.loads(request_body(model_settings, CHAT)) == {
        "model": "claude-haiku-4-5",
        "max_tokens": 300,
        "stop_sequences": ["</answer>"],
        "metadata": {"user_id": "u"},
        "output_config": {"effort": "low"},
        "system": [
            {"type": "text", "text": "You are the verifier.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [{"role": "user", "content": "Expert: It is right. Ünïcode \x00 too."}],
    }


def test_complete_chat_is_cached_from_the_second_turn() -> None:
    first, second = (orjson.loads(request_body(make_settings(), chat)) for chat in (CHAT, LONGER_CHAT))
    assert "cache_control" not in first
    assert second["cache_control"] == {"type": "ephemeral"}
    assert second["messages"][: len(first["messages"])] == first["messages"]


def test_call_sends_the_body_that_request_body_returns(tmp_path: Path) -> None:
    with run_messages_server(record=1) as server:
        complete(make_settings(server), LONGER_CHAT)
        (sent,) = server.recorded_requests()
    assert sent["path"] == "/v1/messages"
    assert sent["body"].encode() == request_body(make_settings(), LONGER_CHAT)
    assert sent["headers"]["content-type"] == "application/json"
    assert sent["headers"]["authorization"] == "Bearer none"


def test_base_url_may_end_with_the_api_version() -> None:
    with run_messages_server() as server:
        assert complete(make_settings(server, base_url=f"{server.base_url}/v1/")).choices[0].finish_reason == "stop"


def test_anthropic_key_is_sent_only_to_anthropics_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-0123456789abcdef")
    official, custom = make_settings(base_url=None), make_settings()
    assert (official.key_variable, custom.key_variable) == ("ANTHROPIC_API_KEY", None)
    assert make_client(official, "m", 1).auth_headers == {"Authorization": "Bearer sk-ant-0123456789abcdef"}
    assert make_client(custom, "m", 1).auth_headers == {"Authorization": "Bearer none"}
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    with pytest.raises(ProviderRefusal, match="ANTHROPIC_API_KEY is empty"):
        make_client(official, "m", 1)


def test_environment_does_not_change_the_address_or_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:8")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "token-of-somebody")
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: somebody")
    client = make_client(make_settings(), "m", 1)
    assert str(client.base_url).rstrip("/") == "http://127.0.0.1:9"
    assert client.auth_headers == {"Authorization": "Bearer none"}
    assert "X-Team" not in client.default_headers


# Answers


def test_answer_is_read_with_thinking_and_all_token_classes() -> None:
    message = {
        "type": "message", "model": "claude-haiku-4-5", "stop_reason": "end_turn",
        "content": [
            {"type": "thinking", "thinking": "Look."}, {"type": "text", "text": "It "}, {"type": "text", "text": "is."},
        ],
        "usage": {
            "input_tokens": 10, "cache_creation_input_tokens": 200, "cache_read_input_tokens": 3000,
            "output_tokens": 50, "output_tokens_details": {"thinking_tokens": 20}, "service_tier": "standard",
        },
    }  # fmt: skip
    (choice,) = choices_of(message)
    assert (choice.text, choice.finish_reason, choice.reasoning) == ("It is.", "stop", "Look.")
    assert reported_usage(message) == Usage(3210, 50, 3000, False, 200, 20, service_tier="standard")


def test_rate_limits_are_learned_from_the_headers() -> None:
    learned: list[dict[str, str]] = []
    with run_messages_server(rates=(50, 30_000, 8_000)) as server:
        complete(make_settings(server), on_headers=learned.append)
    assert learned == [{"x-ratelimit-limit-requests": "50", "x-ratelimit-limit-tokens": "38000"}]


# Complete runs


def billed_usd(server: LoopbackServer, model_price: dict[str, float] = PRICE) -> float:
    billed = server.stats()["billed"]
    names = {
        "input_tokens": "input", "output_tokens": "output", "cache_read_input_tokens": "cached_input",
        "cache_creation_input_tokens": "cache_write",
    }  # fmt: skip
    return float(sum(billed[count] * model_price[rate] for count, rate in names.items()) / 1e6)


def test_run_costs_what_the_server_bills_including_cache_reads_and_writes(tmp_path: Path) -> None:
    with run_messages_server() as server:
        result = run_spec(write_spec(server, tmp_path), tmp_path / "results")
        billed, cost = server.stats()["billed"], billed_usd(server)
    assert result.manifest.cost_usd == pytest.approx(cost, abs=1e-9)
    rows = table(result.folder.path, "completions")
    assert sum(row["cached_tokens"] for row in rows) == billed["cache_read_input_tokens"] > 0
    assert sum(row["cache_write_tokens"] or 0 for row in rows) == billed["cache_creation_input_tokens"] > 0
    assert {row["service_tier"] for row in rows} == {"standard"}
    assert not any(row["usage_estimated"] for row in rows)
    calls = [record for record in journal_records(result.folder.path) if record["kind"] == "call"]
    assert {call["answer"]["type"] for call in calls} == {"message"}
    assert all("usage" not in call for call in calls)  # it is in the stored answer
    assert any((result.folder.path / "fine_tune").iterdir())


def test_listed_price_applies_at_anthropics_server() -> None:
    haiku = ModelSettings(provider="anthropic", model="claude-haiku-4-5", max_tokens=1)
    price = price_of(haiku)
    assert price is not None
    assert price.cost_of(Usage(1_000_000, 0, 0, False, 1_000_000)) == pytest.approx(1.25)
    assert price.cost_of(Usage(1_000_000, 0, 1_000_000)) == pytest.approx(0.1)


@pytest.mark.gate
def test_overloaded_server_is_retried_until_it_answers(tmp_path: Path) -> None:
    faults = {"overloaded": 0.3, "rate_limit": 0.1, "server_error": 0.1}
    with run_messages_server(faults=faults) as server:
        retried = run_spec(write_spec(server, tmp_path / "a"), tmp_path / "results")
        kinds = server.stats()["kinds"]
    with run_messages_server() as server:
        uninterrupted = run_spec(write_spec(server, tmp_path / "b"), tmp_path / "other")
    assert kinds["overloaded"] > 3
    # Retries find a filled prompt cache, so only the token counts per class differ.
    assert derived_files(retried.folder.path).keys() == derived_files(uninterrupted.folder.path).keys()
    assert table(retried.folder.path, "messages") == table(uninterrupted.folder.path, "messages")


@pytest.mark.sample(1)
@pytest.mark.parametrize(
    ("kind", "outcome"),
    [("refusal", "refused"), ("too_long", "context_exceeded"), ("too_large", "context_exceeded")],
)
def test_refusal_and_overlong_prompt_end_the_game(tmp_path: Path, kind: str, outcome: str) -> None:
    with run_messages_server(kind=kind, after=1) as server:
        result = run_spec(write_spec(server, tmp_path, size=2), tmp_path / "results")
        cost = billed_usd(server)
    assert outcome in {row["outcome"] for row in table(result.folder.path, "rollouts")}
    assert result.manifest.cost_usd == pytest.approx(cost, abs=1e-9)


def test_message_for_truncated_answers_names_the_limit_to_raise(tmp_path: Path) -> None:
    with run_messages_server(kind="thinking_only") as server:
        write_spec(server, tmp_path, size=2, retry={"invalid_response": {"attempts": 1}})
        done = nip_run_here("spec.yaml", cwd=tmp_path)
    assert "raise models.m.max_tokens" in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["max_tokens", "context_full"])
def test_answer_truncated_by_limit_or_context_is_recorded_as_truncated(tmp_path: Path, kind: str) -> None:
    with run_messages_server(kind=kind) as server:
        result = run_spec(write_spec(server, tmp_path, size=2), tmp_path / "results")
        cost = billed_usd(server)
    assert {row["finish_reason"] for row in table(result.folder.path, "completions")} == {"length"}
    assert result.manifest.cost_usd == pytest.approx(cost, abs=1e-9)


ADVICE = {
    "unauthorized": "does not accept the key. It comes from $TEST_KEY",
    "billing": "no money or quota left",
    "forbidden": "may not use this model",
    "no_model": "Check models.m.model",
}


@pytest.mark.sample(1)
@pytest.mark.parametrize("kind", ADVICE)
def test_permanent_error_stops_the_run_with_advice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    monkeypatch.setenv("TEST_KEY", "sk-ant-of-a-test")
    with run_messages_server(kind=kind) as server:
        path = write_spec(server, tmp_path, model={"api_key_env": "TEST_KEY"})
        with pytest.raises(ProviderRefusal) as raised_error:
            run_spec(path, tmp_path / "results")
        assert server.requests <= 8
    assert ADVICE[kind] in str(raised_error.value)


def test_invalid_request_ends_only_its_game() -> None:
    with run_messages_server(kind="invalid") as server, pytest.raises(ProviderRefusal) as raised_error:
        complete(make_settings(server))
    assert raised_error.value.of_one_call is not None


@pytest.mark.gate
def test_budget_limits_what_the_server_bills(tmp_path: Path) -> None:
    with run_messages_server() as server:
        with pytest.raises(BudgetExhausted, match=r"budget\.usd"):
            run_spec(write_spec(server, tmp_path), tmp_path / "results", "budget.usd=0.006")
        assert 0 < billed_usd(server) <= 0.006


@pytest.mark.full
def test_killed_run_resumes_without_repeating_recorded_calls(tmp_path: Path) -> None:
    with run_messages_server(held_after=6) as server:
        write_spec(server, tmp_path)
        process = start_nip_run_silently("spec.yaml", cwd=tmp_path)
        wait_until(lambda: server.requests > 6)
        wait_until(lambda: len(list(tmp_path.glob("results/runs/*/journal.jsonl"))) == 1)
        wait_until(lambda: len(journal_records(only_run(tmp_path / "results"))) >= 7)
        process.kill()
        process.wait()
        server.change(held_after=None)
        assert nip_run_here("spec.yaml", cwd=tmp_path).returncode == 0
        bodies = server.stats()["bodies"]
    calls = [record for record in journal_records(only_run(tmp_path / "results")) if record["kind"] == "call"]
    assert len({json.dumps(call["sample"]) for call in calls}) == len(calls)
    assert max(bodies.values()) <= 2  # only calls in flight at the kill are sent twice
    with run_messages_server() as server:
        uninterrupted = run_spec(write_spec(server, tmp_path / "whole"), tmp_path / "whole" / "results")
    assert table(uninterrupted.folder.path, "messages") == table(only_run(tmp_path / "results"), "messages")


def test_replay_writes_the_same_bytes_without_requests(tmp_path: Path) -> None:
    with run_messages_server() as server:
        path = write_spec(server, tmp_path)
        first = run_spec(path, tmp_path / "results")
        before = server.requests
        replay = run_spec(path, tmp_path / "again", replay=ReplayOf(first.folder.path, None))
        assert server.requests == before
    assert derived_files(first.folder.path) == derived_files(replay.folder.path)


def test_benchmark_runs_with_anthropic_and_openai_groups(tmp_path: Path) -> None:
    with run_messages_server() as anthropic_server, run_chat_server() as openai_server:
        overrides = [
            f"models.strong={json.dumps(make_model_spec(anthropic_server))}",
            f"models.small={json.dumps({'provider': 'openai', 'model': 'tiny', 'base_url': openai_server.base_url})}",
            "dataset.limit=6",
        ]
        result = run_spec(ROOT / "specs" / "openai.yaml", tmp_path / "results", *overrides)
        assert anthropic_server.requests
        assert openai_server.requests
    assert result.manifest.benchmark == "code-validation/v1"
    by_agent = {row["agent"]: row["model"] for row in result.manifest.agents}
    assert by_agent == {"prover": "claude-haiku-4-5", "verifier": "tiny"}
    rows = table(result.folder.path, "completions")
    assert {(row["agent"], row["model"]) for row in rows} == set(by_agent.items())


def test_missing_package_is_reported_with_its_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "runner.models.providers.anthropic", None)
    with pytest.raises(UsageError, match=r"pip install 'nip-run\[anthropic\]'"):
        ModelConnector({"m": make_settings()}, Retry()).connect()


def test_known_fields_of_an_answer_are_kept_for_publication() -> None:
    message = {
        "id": "msg_013Zva2CMHLNnXjNJJKqJ2EF", "type": "message", "role": "assistant", "model": "claude-haiku-4-5",
        "content": [
            {"type": "thinking", "thinking": "Look.", "signature": "EqQB"}, {"type": "text", "text": "It is."},
        ],
        "stop_reason": "refusal", "stop_sequence": None,
        "stop_details": {"type": "refusal", "category": "cyber", "explanation": "No."},
        "usage": {
            "input_tokens": 1, "cache_creation": {"ephemeral_5m_input_tokens": 2}, "output_tokens": 3,
            "service_tier": "standard",
        },
    }  # fmt: skip
    assert select_known_fields(message) == (message, 0)
    assert select_known_fields({**message, "x_node": "gpu-17"}) == (message, 1)


# Settings


REJECTED_SETTINGS = {
    "temperature": (0.0, "leave it out"),
    "top_p": (0.9, "leave it out"),
    "n": (2, "retry.invalid_response"),
    "seed": (0, "leave it out"),
    "logprobs": (True, "verdict.confidence=stated"),
    "share_prompts": (True, "caches the common start of prompts"),
    "batch": (True, "one by one"),
    "chat_format": ("openai", "alternating"),
}


@pytest.mark.parametrize("key", REJECTED_SETTINGS)
def test_unsupported_setting_is_rejected_with_an_alternative(tmp_path: Path, key: str) -> None:
    value, alternative = REJECTED_SETTINGS[key]
    spec_file(tmp_path, "http://127.0.0.1:9", models={"m": {"provider": "anthropic", "max_tokens": 9, key: value}})
    with pytest.raises(SpecError) as raised_error:
        load_spec(tmp_path / "spec.yaml")
    (problem,) = [problem for problem in raised_error.value.problems if problem.key == f"models.m.{key}"]
    assert "anthropic" in problem.message
    assert alternative in problem.message


def test_max_tokens_is_required(tmp_path: Path) -> None:
    path = spec_file(tmp_path, "http://127.0.0.1:9", models={"m": {"provider": "anthropic"}})
    with pytest.raises(SpecError, match=r"add models\.m\.max_tokens"):
        load_spec(path)


def test_logprob_confidence_is_rejected_in_favor_of_stated_confidence(tmp_path: Path) -> None:
    models = {"m": {"provider": "anthropic", "max_tokens": 9}}
    path = spec_file(tmp_path, "http://127.0.0.1:9", models=models, verdict={"confidence": "logprob"})
    with pytest.raises(SpecError, match=r"anthropic returns no log-probabilities; set verdict\.confidence=stated"):
        load_spec(path)


def test_chats_alternate_and_have_a_system_prompt_at_any_address(tmp_path: Path) -> None:
    for address in (None, "http://127.0.0.1:9", ["http://127.0.0.1:8", "http://127.0.0.1:9"]):
        models = {"m": {"provider": "anthropic", "max_tokens": 9, "base_url": address}}
        spec = load_spec(spec_file(tmp_path, "http://127.0.0.1:9", models=models))
        group = spec.experiment.models["m"]
        assert (group.chat_format, group.system_role) == ("alternating", "system")


def test_price_changing_option_requires_a_price(tmp_path: Path) -> None:
    extra = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    models = {"m": {"provider": "anthropic", "max_tokens": 9, "extra_body": extra}}
    with pytest.raises(SpecError, match=r"changes the price of a token; set models\.m\.price"):
        load_spec(spec_file(tmp_path, "http://127.0.0.1:9", models=models))


# Errors


def make_client_error(kind: type[anthropic.AnthropicError], status: int) -> anthropic.AnthropicError:
    """Build an exception as the client does."""
    request = httpx2.Request("POST", "http://127.0.0.1/v1/messages")
    body = {"type": "error", "error": {"type": "api_error", "message": "no"}}
    response = httpx2.Response(status, request=request, json=body)
    if issubclass(kind, anthropic.APIStatusError):
        return kind("no", response=response, body=body)
    if issubclass(kind, anthropic.APITimeoutError | anthropic.APIConnectionError):
        return kind(request=request)
    if issubclass(kind, anthropic.APIResponseValidationError):
        return kind(response=response, body=None)
    if issubclass(kind, anthropic.APIError):
        return kind("no", request=request, body=None)
    return kind("no")


def exported_errors() -> Iterator[tuple[str, type[anthropic.AnthropicError]]]:
    for name in anthropic.__all__:
        kind = getattr(anthropic, name)
        if inspect.isclass(kind) and issubclass(kind, anthropic.AnthropicError):
            yield name, kind


STATUSES = {
    "BadRequestError": 400, "AuthenticationError": 401, "PaymentRequiredError": 402, "PermissionDeniedError": 403,
    "NotFoundError": 404, "RequestTimeoutError": 408, "ConflictError": 409, "PreconditionFailedError": 412,
    "ContentTooLargeError": 413, "RequestTooLargeError": 413, "UnprocessableEntityError": 422, "RateLimitError": 429,
    "RequestHeaderFieldsTooLargeError": 431, "ClientClosedRequestError": 499, "OverloadedError": 529,
}  # fmt: skip
REFUSALS = (400, 401, 402, 403, 404, 412, 422, 431, 499)


def test_every_exported_client_exception_is_mapped() -> None:
    kinds = dict(exported_errors())
    assert {"APITimeoutError", "RateLimitError", "OverloadedError"} <= kinds.keys()
    for name, kind in kinds.items():
        status = STATUSES.get(name, 500)
        error: NipRunError = map_client_error(make_client_error(kind, status), make_settings(), "m")
        if status in REFUSALS:
            assert isinstance(error, ProviderRefusal), name
        elif status == 413:
            assert isinstance(error, CallError), name
        else:
            assert isinstance(error, TransientError), name
