"""Requests to OpenAI-compatible servers: body, key and connections."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from runner.base.errors import ProviderRefusal, TransientError
from runner.models.interface import Request
from runner.models.providers.client_errors import map_client_error
from runner.models.providers.http_model import close_client
from runner.models.providers.openai import CLIENT_ERRORS, OpenAiModel, make_client
from runner.models.settings import ModelSettings
from tests.support.openai_calls import CHAT, SAMPLE, complete_chat, model_settings
from tests.support.servers.chat_client import run_chat_server
from tests.support.servers.client import LoopbackServer


@pytest.fixture(scope="module")
def server() -> Any:
    with run_chat_server(record=1000) as running:
        yield running


def record_request(server: LoopbackServer, settings: ModelSettings) -> dict[str, Any]:
    """Complete a chat and return the request that the server received."""
    complete_chat(settings)
    recorded: dict[str, Any] = server.recorded_requests()[-1]
    return recorded


def record_body(server: LoopbackServer, **more: Any) -> dict[str, Any]:
    body_data: dict[str, Any] = json.loads(record_request(server, model_settings(server, **more))["body"])
    return body_data


def test_request_has_only_model_and_messages_by_default(server: LoopbackServer) -> None:
    assert record_body(server) == {"model": "tiny", "messages": list(CHAT)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0), ("temperature", 1.3), ("top_p", 0.9), ("max_completion_tokens", 300), ("max_tokens", 300),
        ("n", 2), ("seed", 0), ("reasoning_effort", "low"), ("logprobs", True), ("top_logprobs", 0),
    ],
)  # fmt: skip
def test_only_parameters_set_in_the_spec_are_sent(server: LoopbackServer, name: str, value: Any) -> None:
    assert record_body(server, **{name: value}) == {"model": "tiny", "messages": list(CHAT), name: value}


def test_stop_is_sent_as_a_list(server: LoopbackServer) -> None:
    assert record_body(server, stop=("END", "</a>"))["stop"] == ["END", "</a>"]


def test_token_limit_is_sent_under_the_name_set_in_the_spec(server: LoopbackServer) -> None:
    assert "max_tokens" not in record_body(server, max_completion_tokens=9)
    assert "max_completion_tokens" not in record_body(server, max_tokens=9)


def test_extra_body_is_sent_unchanged(server: LoopbackServer) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1}
    assert record_body(server, extra_body=extra) == {"model": "tiny", "messages": list(CHAT), **extra}


def test_system_role_of_the_spec_is_used_for_system_messages(server: LoopbackServer) -> None:
    assert [m["role"] for m in record_body(server)["messages"]] == ["system", "user", "assistant"]
    roles = [m["role"] for m in record_body(server, system_role="developer")["messages"]]
    assert roles == ["developer", "user", "assistant"]


def test_names_are_sent_unless_send_name_is_false(server: LoopbackServer) -> None:
    assert record_body(server)["messages"][1]["name"] == "Expert_1"
    messages_without_names = record_body(server, send_name=False)["messages"]
    assert all("name" not in message for message in messages_without_names)
    assert [m["content"] for m in messages_without_names] == [m["content"] for m in CHAT]


def test_completion_is_posted_to_chat_completions_below_the_base_url(server: LoopbackServer) -> None:
    recorded = record_request(server, model_settings(server))
    assert (recorded["method"], recorded["path"]) == ("POST", "/v1/chat/completions")
    assert recorded["headers"]["content-type"] == "application/json"


def test_api_key_comes_from_the_variable_named_in_the_spec(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-some")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    assert (
        record_request(server, model_settings(server, api_key_env="SOME_KEY"))["headers"]["authorization"]
        == "Bearer sk-some"
    )


def test_the_openai_key_is_never_sent_to_another_server(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "sk-secret")
    recorded = record_request(server, model_settings(server))
    assert "sk-secret" not in json.dumps(recorded)


def test_base_url_and_headers_from_the_environment_are_ignored(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Mine: sk-secret")
    monkeypatch.setenv("OPENAI_LOG", "debug")
    assert "sk-secret" not in json.dumps(record_request(server, model_settings(server)))


@pytest.mark.parametrize("value", ["", "  "])
def test_missing_key_error_names_its_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ProviderRefusal, match=r"models\.small.*SOME_KEY"):
        complete_chat(model_settings(base_url="http://127.0.0.1:9/v1", api_key_env="SOME_KEY"))


def test_openai_server_requires_the_openai_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ProviderRefusal, match="OPENAI_API_KEY"):
        complete_chat(model_settings())


def test_redirects_are_not_followed() -> None:
    with run_chat_server(kind="redirect", location="/v1/elsewhere") as server:
        with pytest.raises(ProviderRefusal, match="307: a redirect to /v1/elsewhere"):
            complete_chat(model_settings(server))
        assert server.stats()["paths"] == {"/v1/chat/completions": 1}


@pytest.mark.full
def test_client_does_not_retry_failed_calls() -> None:
    """The client's own retries are off: the spec's policy is the only one."""
    for kind in ("server_error", "rate_limit", "drop"):
        with run_chat_server(kind=kind) as server:
            with pytest.raises(TransientError):
                complete_chat(model_settings(server))
            assert server.requests == 1, kind


def test_connections_are_reused(server: LoopbackServer) -> None:
    async def complete_many() -> None:
        model = OpenAiModel(model_settings(server), "small", 4)
        try:
            for _ in range(10):
                await model.complete(Request("small", CHAT, SAMPLE))
        finally:
            await model.close()

    before = server.stats()["connections"]
    asyncio.run(complete_many())
    assert server.stats()["connections"] - before <= 3


@pytest.mark.parametrize("key", ["sk-0123456789abcdef\u200b", "sk-012345678\n9abcdef", "sk-0123456789abcdéf"])
def test_error_for_an_unsendable_key_names_its_variable_and_not_the_key(
    monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("SOME_API_KEY", key)
    with pytest.raises(
        ProviderRefusal, match="variable SOME_API_KEY has a character that headers cannot contain"
    ) as caught:
        complete_chat(model_settings(base_url="http://127.0.0.1:9/v1", api_key_env="SOME_API_KEY"))
    assert "0123" not in str(caught.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize("value", ["a\nb", "a\u200bb"])
def test_unsendable_request_is_not_retried(value: str) -> None:
    async def run_calls(settings: ModelSettings) -> None:
        client = make_client(settings, "small", 1)
        try:
            await client.models.list(extra_headers={"x-odd": value})
        finally:
            await close_client(client)

    with run_chat_server() as server, pytest.raises(CLIENT_ERRORS) as caught:
        settings = model_settings(server)
        asyncio.run(run_calls(settings))
    assert isinstance(map_client_error(caught.value, settings, "small"), ProviderRefusal)
