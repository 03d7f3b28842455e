"""What goes to an OpenAI-compatible server: the body, the key, the connections."""

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


def sent(server: LoopbackServer, chosen: ModelSettings) -> dict[str, Any]:
    """The last request as the server got it."""
    complete_chat(chosen)
    recorded: dict[str, Any] = server.recorded_requests()[-1]
    return recorded


def body(server: LoopbackServer, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sent(server, model_settings(server, **more))["body"])
    return found


def test_where_the_spec_sets_nothing_only_model_and_messages_are_sent(server: LoopbackServer) -> None:
    assert body(server) == {"model": "tiny", "messages": list(CHAT)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0), ("temperature", 1.3), ("top_p", 0.9), ("max_completion_tokens", 300), ("max_tokens", 300),
        ("n", 2), ("seed", 0), ("reasoning_effort", "low"), ("logprobs", True), ("top_logprobs", 0),
    ],
)  # fmt: skip
def test_a_parameter_that_the_spec_sets_is_sent_and_no_other(server: LoopbackServer, name: str, value: Any) -> None:
    assert body(server, **{name: value}) == {"model": "tiny", "messages": list(CHAT), name: value}


def test_stop_is_sent_as_a_list(server: LoopbackServer) -> None:
    assert body(server, stop=("END", "</a>"))["stop"] == ["END", "</a>"]


def test_the_token_limit_goes_by_the_one_name_that_the_spec_chose(server: LoopbackServer) -> None:
    assert "max_tokens" not in body(server, max_completion_tokens=9)
    assert "max_completion_tokens" not in body(server, max_tokens=9)


def test_extra_body_goes_along_as_it_is(server: LoopbackServer) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1}
    assert body(server, extra_body=extra) == {"model": "tiny", "messages": list(CHAT), **extra}


def test_system_messages_are_developer_messages_where_the_spec_says_so(server: LoopbackServer) -> None:
    assert [m["role"] for m in body(server)["messages"]] == ["system", "user", "assistant"]
    roles = [m["role"] for m in body(server, system_role="developer")["messages"]]
    assert roles == ["developer", "user", "assistant"]


def test_names_are_sent_unless_the_spec_says_no(server: LoopbackServer) -> None:
    assert body(server)["messages"][1]["name"] == "Expert_1"
    without = body(server, send_name=False)["messages"]
    assert all("name" not in message for message in without)
    assert [m["content"] for m in without] == [m["content"] for m in CHAT]


def test_a_completion_is_a_post_to_chat_completions_below_the_base_url(server: LoopbackServer) -> None:
    recorded = sent(server, model_settings(server))
    assert (recorded["method"], recorded["path"]) == ("POST", "/v1/chat/completions")
    assert recorded["headers"]["content-type"] == "application/json"


def test_the_key_comes_from_the_variable_that_the_spec_names(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-some")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    assert sent(server, model_settings(server, api_key_env="SOME_KEY"))["headers"]["authorization"] == "Bearer sk-some"


def test_the_openai_key_is_never_sent_to_another_server(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "sk-secret")
    recorded = sent(server, model_settings(server))
    assert "sk-secret" not in json.dumps(recorded)


def test_base_url_and_headers_from_the_environment_are_not_obeyed(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Mine: sk-secret")
    monkeypatch.setenv("OPENAI_LOG", "debug")
    assert "sk-secret" not in json.dumps(sent(server, model_settings(server)))


@pytest.mark.parametrize("value", ["", "  "])
def test_a_missing_key_is_refused_by_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ProviderRefusal, match=r"models\.small.*SOME_KEY"):
        complete_chat(model_settings(base_url="http://127.0.0.1:9/v1", api_key_env="SOME_KEY"))


def test_openai_itself_needs_the_openai_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ProviderRefusal, match="OPENAI_API_KEY"):
        complete_chat(model_settings())


def test_no_redirect_is_followed() -> None:
    with run_chat_server(kind="redirect", location="/v1/elsewhere") as server:
        with pytest.raises(ProviderRefusal, match="307: a redirect to /v1/elsewhere"):
            complete_chat(model_settings(server))
        assert server.stats()["paths"] == {"/v1/chat/completions": 1}


@pytest.mark.full
def test_each_call_is_made_once_whatever_comes_back() -> None:
    """The client's own retries are off: the spec's policy is the only one."""
    for kind in ("server_error", "rate_limit", "drop"):
        with run_chat_server(kind=kind) as server:
            with pytest.raises(TransientError):
                complete_chat(model_settings(server))
            assert server.requests == 1, kind


def test_connections_are_kept_and_reused(server: LoopbackServer) -> None:
    async def many() -> None:
        model = OpenAiModel(model_settings(server), "small", 4)
        try:
            for _ in range(10):
                await model.complete(Request("small", CHAT, SAMPLE))
        finally:
            await model.close()

    before = server.stats()["connections"]
    asyncio.run(many())
    assert server.stats()["connections"] - before <= 3


@pytest.mark.parametrize("odd", ["sk-0123456789abcdef\u200b", "sk-012345678\n9abcdef", "sk-0123456789abcdéf"])
def test_a_key_that_cannot_be_sent_is_refused_by_the_name_of_its_variable(
    monkeypatch: pytest.MonkeyPatch, odd: str
) -> None:
    monkeypatch.setenv("SOME_API_KEY", odd)
    with pytest.raises(
        ProviderRefusal, match="variable SOME_API_KEY has a character that headers cannot contain"
    ) as caught:
        complete_chat(model_settings(base_url="http://127.0.0.1:9/v1", api_key_env="SOME_API_KEY"))
    assert "0123" not in str(caught.value)


@pytest.mark.sample(1)
@pytest.mark.parametrize("odd", ["a\nb", "a\u200bb"])
def test_a_call_that_cannot_be_sent_is_not_tried_again(odd: str) -> None:
    async def go(chosen: ModelSettings) -> None:
        client = make_client(chosen, "small", 1)
        try:
            await client.models.list(extra_headers={"x-odd": odd})
        finally:
            await close_client(client)

    with run_chat_server() as server, pytest.raises(CLIENT_ERRORS) as caught:
        chosen = model_settings(server)
        asyncio.run(go(chosen))
    assert isinstance(map_client_error(caught.value, chosen, "small"), ProviderRefusal)
