"""What goes to an OpenAI-compatible server, and what becomes of everything that can come back."""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import Sequence
from typing import Any

import httpx2
import openai
import pytest

from runner.errors import CallError, ContextExceededError, NipRunError, ProviderRefusal, RefusedError, TransientError
from runner.models.base import Completion, Request, Sample
from runner.models.openai import OpenAiModel, as_ours
from runner.models.openai_wire import duration, retry_after
from runner.models.settings import ModelSettings
from runner.prompts.chat import ChatMessage
from tests.server.client import Loopback, serving

CHAT: Sequence[ChatMessage] = (
    {"role": "system", "content": "You are the verifier. Decision: accept or Decision: reject."},
    {"role": "user", "name": "Expert_1", "content": "It is right. Ünïcode \x00 too."},
    {"role": "assistant", "content": "Why?"},
)
SAMPLE = Sample("p", 0, 0, "verifier", 0)


def settings(server: Loopback | None = None, **more: Any) -> ModelSettings:
    return ModelSettings(**{"model": "tiny", "base_url": server and server.base_url, "timeout": 5.0, **more})


def ask(chosen: ModelSettings, chat: Sequence[ChatMessage] = CHAT) -> Completion:
    """One call, its connections closed."""

    async def once() -> Completion:
        model = OpenAiModel(chosen, "small", 4)
        try:
            return await model.complete(Request("small", chat, SAMPLE))
        finally:
            await model.close()

    return asyncio.run(once())


def failure(**options: Any) -> NipRunError:
    """What a call to a server with these options raises."""
    with serving(**options) as server, pytest.raises(NipRunError) as raised:
        ask(settings(server, timeout=0.5))
    return raised.value


@pytest.fixture(scope="module")
def server() -> Any:
    with serving(record=1000) as running:
        yield running


def sent(server: Loopback, chosen: ModelSettings) -> dict[str, Any]:
    """The last request as the server got it."""
    ask(chosen)
    recorded: dict[str, Any] = server.recorded()[-1]
    return recorded


def body(server: Loopback, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(sent(server, settings(server, **more))["body"])
    return found


# What goes on the wire


def test_only_the_model_and_the_messages_are_sent_where_the_spec_sets_nothing(server: Loopback) -> None:
    assert body(server) == {"model": "tiny", "messages": list(CHAT)}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", 0.0), ("temperature", 1.3), ("top_p", 0.9), ("max_completion_tokens", 300), ("max_tokens", 300),
        ("n", 2), ("seed", 0), ("reasoning_effort", "low"),
    ],
)  # fmt: skip
def test_a_parameter_that_the_spec_sets_is_sent_and_no_other(server: Loopback, name: str, value: Any) -> None:
    assert body(server, **{name: value}) == {"model": "tiny", "messages": list(CHAT), name: value}


def test_stop_is_sent_as_a_list(server: Loopback) -> None:
    assert body(server, stop=("END", "</a>"))["stop"] == ["END", "</a>"]


def test_the_token_limit_goes_by_the_one_name_that_the_spec_chose(server: Loopback) -> None:
    assert "max_tokens" not in body(server, max_completion_tokens=9)
    assert "max_completion_tokens" not in body(server, max_tokens=9)


def test_extra_body_goes_along_as_it_is(server: Loopback) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": False}, "min_p": 0.1}
    assert body(server, extra_body=extra) == {"model": "tiny", "messages": list(CHAT), **extra}


def test_system_messages_are_developer_messages_where_the_spec_says_so(server: Loopback) -> None:
    assert [m["role"] for m in body(server)["messages"]] == ["system", "user", "assistant"]
    roles = [m["role"] for m in body(server, system_role="developer")["messages"]]
    assert roles == ["developer", "user", "assistant"]


def test_names_are_sent_unless_the_spec_says_no(server: Loopback) -> None:
    assert body(server)["messages"][1]["name"] == "Expert_1"
    without = body(server, send_name=False)["messages"]
    assert all("name" not in message for message in without)
    assert [m["content"] for m in without] == [m["content"] for m in CHAT]


def test_a_completion_is_a_post_to_chat_completions_below_the_base_url(server: Loopback) -> None:
    recorded = sent(server, settings(server))
    assert (recorded["method"], recorded["path"]) == ("POST", "/v1/chat/completions")
    assert recorded["headers"]["content-type"] == "application/json"


def test_the_key_comes_from_the_variable_that_the_spec_names(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sk-some")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    assert sent(server, settings(server, api_key_env="SOME_KEY"))["headers"]["authorization"] == "Bearer sk-some"


def test_openai_s_key_is_never_sent_to_another_server(server: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENAI_API_KEY", "OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY", "OPENAI_WEBHOOK_SECRET"):
        monkeypatch.setenv(name, "sk-secret")
    recorded = sent(server, settings(server))
    assert "sk-secret" not in json.dumps(recorded)


def test_base_url_and_headers_from_the_environment_are_not_obeyed(
    server: Loopback, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Mine: sk-secret")
    monkeypatch.setenv("OPENAI_LOG", "debug")
    assert "sk-secret" not in json.dumps(sent(server, settings(server)))


@pytest.mark.parametrize("value", ["", "  "])
def test_a_missing_key_is_refused_by_the_name_of_its_variable(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("SOME_KEY", value)
    with pytest.raises(ProviderRefusal, match=r"models\.small.*SOME_KEY"):
        ask(settings(base_url="http://127.0.0.1:9/v1", api_key_env="SOME_KEY"))


def test_openai_itself_needs_openai_s_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(ProviderRefusal, match="OPENAI_API_KEY"):
        ask(settings())


def test_no_redirect_is_followed() -> None:
    with serving(kind="redirect", location="/v1/elsewhere") as server:
        with pytest.raises(ProviderRefusal, match="redirects"):
            ask(settings(server))
        assert server.stats()["paths"] == {"/v1/chat/completions": 1}


def test_each_call_is_made_once_whatever_comes_back() -> None:
    """The client's own retries are off: the spec's policy is the only one."""
    for kind in ("server_error", "rate_limit", "drop"):
        with serving(kind=kind) as server:
            with pytest.raises(TransientError):
                ask(settings(server))
            assert server.requests == 1, kind


def test_connections_are_kept_and_reused(server: Loopback) -> None:
    async def many() -> None:
        model = OpenAiModel(settings(server), "small", 4)
        try:
            for _ in range(10):
                await model.complete(Request("small", CHAT, SAMPLE))
        finally:
            await model.close()

    before = server.stats()["connections"]
    asyncio.run(many())
    assert server.stats()["connections"] - before <= 3


# Every class of failure


@pytest.mark.parametrize(
    ("kind", "expected", "status"),
    [
        ("rate_limit", TransientError, 429),
        ("rate_limit_seconds", TransientError, 429),
        ("rate_limit_ms", TransientError, 429),
        ("server_error", TransientError, 500),
        ("overloaded", TransientError, 503),
        ("error_in_200", TransientError, 503),
        ("drop", TransientError, None),
        ("half_body", TransientError, None),
        ("malformed", TransientError, None),
        ("html", TransientError, None),
        ("empty_choices", TransientError, None),
        ("hang", TransientError, None),
        ("context_length_exceeded", ContextExceededError, 400),
        ("content_policy", RefusedError, 400),
        ("insufficient_quota", ProviderRefusal, None),
        ("unauthorized", ProviderRefusal, None),
        ("forbidden", ProviderRefusal, None),
        ("unknown_model", ProviderRefusal, None),
        ("unsupported_parameter", ProviderRefusal, None),
        ("redirect", ProviderRefusal, None),
    ],
)
def test_everything_that_comes_back_has_its_class(kind: str, expected: type[NipRunError], status: int | None) -> None:
    error = failure(kind=kind)
    assert type(error) is expected, error
    assert "127.0.0.1" in str(error)
    assert "small" in str(error)
    if isinstance(error, CallError):
        assert error.status == status


ROWS: list[tuple[int, dict[str, Any], type[NipRunError]]] = [
    (429, {"code": code, "type": "insufficient_quota"}, ProviderRefusal)
    for code in (
        "insufficient_quota", "credit_balance_exhausted", "organization_spend_limit_exceeded",
        "project_spend_limit_exceeded", "organization_usage_limit_exceeded",
    )
] + [
    (429, {"code": None, "type": "insufficient_quota"}, ProviderRefusal),
    (429, {"code": "rate_limit_exceeded", "type": "tokens"}, TransientError),
    (429, {"code": "slow_down"}, TransientError),
    (503, {"code": "slow_down"}, TransientError),
    (429, {"code": "resource_unavailable"}, TransientError),
    (400, {"code": "unsupported_parameter", "param": "temperature"}, ProviderRefusal),
    (400, {"code": "unsupported_value", "param": "temperature"}, ProviderRefusal),
    (400, {"code": "invalid_value", "param": "service_tier"}, ProviderRefusal),
    (400, {"code": "context_length_exceeded"}, ContextExceededError),
    (400, {"message": "This model's maximum context length is 4096 tokens."}, ContextExceededError),
    (413, {"message": "too large"}, ContextExceededError),
    *[
        (400, {"code": code}, RefusedError)
        for code in ("content_policy_violation", "content_filter", "invalid_prompt", "cyber_policy", "bio_policy")
    ],
    (401, {"code": "invalid_api_key"}, ProviderRefusal),
    (403, {"code": "unsupported_country_region_territory"}, ProviderRefusal),
    (404, {"code": "model_not_found"}, ProviderRefusal),
    (422, {"message": "field required"}, ProviderRefusal),
    *[(status, {}, TransientError) for status in (408, 409, 429, 500, 502, 503, 504, 529)],
]  # fmt: skip


@pytest.fixture(scope="module")
def statuses() -> Any:
    """A bare server that answers with the status and the body that the request's last message holds."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = next(int(line.split(b":")[1]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-l"))
        wanted = json.loads(json.loads(await reader.readexactly(length))["messages"][-1]["content"])
        data = wanted["body"] if isinstance(wanted["body"], str) else json.dumps(wanted["body"])
        extra = "".join(f"{name}: {value}\r\n" for name, value in wanted.get("headers", {}).items())
        length_out = f"content-length: {len(data.encode())}\r\n{extra}connection: close\r\n"
        writer.write(f"HTTP/1.1 {wanted['status']} X\r\n{length_out}\r\n{data}".encode())
        await writer.drain()
        writer.close()

    return answer


def answered(statuses: Any, status: int, body: Any, headers: dict[str, str] | None = None) -> Completion:
    """One call to a server that answers just this."""
    wanted = json.dumps({"status": status, "body": body, "headers": headers or {}})

    async def once() -> Completion:
        listening = await asyncio.start_server(statuses, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        model = OpenAiModel(settings(base_url=f"http://127.0.0.1:{port}/v1"), "small", 1)
        try:
            return await model.complete(Request("small", [{"role": "user", "content": wanted}], SAMPLE))
        finally:
            await model.close()
            listening.close()

    return asyncio.run(once())


@pytest.mark.parametrize(("status", "detail", "expected"), ROWS)
def test_every_row_of_the_error_table_has_its_class(
    statuses: Any, status: int, detail: dict[str, Any], expected: type[NipRunError]
) -> None:
    with pytest.raises(NipRunError) as raised:
        answered(statuses, status, {"error": {"message": "no", "type": None, "param": None, "code": None, **detail}})
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    "said",
    ["", "plain text", "[]", "null", '{"detail": "x"}', '{"error": "x"}', '{"error": {"message": {}, "code": 7}}'],
)
@pytest.mark.parametrize(("status", "expected"), [(400, ProviderRefusal), (500, TransientError)])
def test_an_error_in_another_form_is_classified_by_its_status(
    statuses: Any, said: str, status: int, expected: type[NipRunError]
) -> None:
    with pytest.raises(NipRunError) as raised:
        answered(statuses, status, said)
    assert type(raised.value) is expected


def test_vllm_s_error_without_an_envelope_is_read(statuses: Any) -> None:
    said = {"object": "error", "message": "This model's maximum context length is 8 tokens.", "code": 400}
    with pytest.raises(ContextExceededError):
        answered(statuses, 400, said)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"retry-after": "7"}, 7.0), ({"retry-after-ms": "250", "retry-after": "9"}, 0.25), ({}, None)],
)
def test_a_rate_limit_carries_the_wait_that_the_server_asks_for(
    statuses: Any, headers: dict[str, str], expected: float | None
) -> None:
    with pytest.raises(TransientError) as raised:
        answered(statuses, 429, {"error": {"message": "slow"}}, headers)
    assert raised.value.retry_after == expected


def test_what_a_server_says_cannot_drive_the_terminal(statuses: Any) -> None:
    with pytest.raises(NipRunError) as raised:
        answered(statuses, 500, {"error": {"message": "\x1b]0;owned\x07\x1b[2J"}})
    assert "\x1b" not in str(raised.value)
    with pytest.raises(NipRunError) as raised:
        answered(statuses, 200, "\x1b[2J<html>")
    assert "\x1b" not in str(raised.value)


def test_a_server_that_is_not_there_is_transient() -> None:
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        with pytest.raises(TransientError, match=f"127.0.0.1:{port}"):
            ask(settings(base_url=f"http://127.0.0.1:{port}/v1"))


def _raised(kind: type[openai.OpenAIError], status: int) -> openai.OpenAIError:
    """An exception of the client, as the client would make it."""
    request = httpx2.Request("POST", "http://127.0.0.1/v1/chat/completions")
    response = httpx2.Response(status, request=request, json={"error": {"message": "no"}})
    if issubclass(kind, openai.APIStatusError):
        return kind("no", response=response, body={"message": "no"})
    if issubclass(kind, openai.APITimeoutError):
        return kind(request=request)
    if issubclass(kind, openai.APIConnectionError):
        return kind(request=request)
    if issubclass(kind, openai.APIResponseValidationError):
        return kind(response=response, body=None)
    if issubclass(kind, openai.APIError):
        return kind("no", request=request, body=None)
    return kind("no")


NOT_FROM_A_CALL = {
    "LengthFinishReasonError", "ContentFilterFinishReasonError",  # of the parsing helpers
    "InvalidWebhookSignatureError", "WebSocketConnectionClosedError", "WebSocketQueueFullError",
    "SubjectTokenProviderError", "OAuthError",
}  # fmt: skip


def test_every_exception_that_the_client_exports_is_mapped() -> None:
    """A new class in the client's next version fails here until somebody decides what it means."""
    named = {name: getattr(openai, name) for name in openai.__all__ if name.endswith("Error")}
    exported = {
        name: kind
        for name, kind in named.items()
        if inspect.isclass(kind) and issubclass(kind, openai.OpenAIError) and name not in NOT_FROM_A_CALL
    }
    assert {"APITimeoutError", "RateLimitError", "InternalServerError"} <= exported.keys()
    statuses = {
        "BadRequestError": 400, "AuthenticationError": 401, "PermissionDeniedError": 403, "NotFoundError": 404,
        "ConflictError": 409, "UnprocessableEntityError": 422, "RateLimitError": 429,
    }  # fmt: skip
    refused = {
        "BadRequestError", "AuthenticationError", "PermissionDeniedError", "NotFoundError", "UnprocessableEntityError",
    }  # fmt: skip
    for name, kind in exported.items():
        mapped = as_ours(_raised(kind, statuses.get(name, 500)), settings(base_url="http://127.0.0.1/v1"), "small")
        assert type(mapped) is (ProviderRefusal if name in refused else TransientError), name


# Headers


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after-ms": "1500"}, 1.5),
        ({"retry-after-ms": "-5"}, 0.0),
        ({"retry-after": "2"}, 2.0),
        ({"retry-after": "0.25"}, 0.25),
        ({"retry-after": "-1"}, 0.0),
        ({"retry-after-ms": "soon", "retry-after": "3"}, 3.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:01:40 GMT"}, 90.0),
        ({"retry-after": "Thu, 01 Jan 1970 00:00:01 GMT"}, 0.0),
        ({"retry-after": "soon"}, None),
        ({"retry-after": ""}, None),
        ({"retry-after": "nan"}, None),
        ({"retry-after": "inf"}, None),
        ({"x-ratelimit-reset-requests": "1s", "x-ratelimit-remaining-requests": "3"}, None),
        ({"x-ratelimit-reset-requests": "1m30s", "x-ratelimit-remaining-requests": "0"}, 90.0),
        ({"x-ratelimit-reset-tokens": "12ms", "x-ratelimit-remaining-tokens": "0"}, 0.012),
        ({"x-ratelimit-reset-tokens": "-1", "x-ratelimit-remaining-tokens": "0"}, None),
        (
            {
                "x-ratelimit-reset-tokens": "2s", "x-ratelimit-remaining-tokens": "0",
                "x-ratelimit-reset-requests": "5s", "x-ratelimit-remaining-requests": "0",
            },
            5.0,
        ),
    ],
)  # fmt: skip
def test_the_wait_is_the_server_s_wish_in_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(httpx2.Headers(headers), now=10.0) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012), ("6s", 6.0), ("1m30s", 90.0), ("1h", 3600.0), ("1h2m3.5s", 3723.5), ("6", 6.0), ("0.5", 0.5),
        ("", None), ("soon", None), ("-1", None),
    ],
)  # fmt: skip
def test_durations_are_read_in_all_their_forms(text: str, seconds: float | None) -> None:
    assert duration(text) == (None if seconds is None else pytest.approx(seconds))


# Answers


def test_usage_is_the_server_s_with_the_cached_tokens() -> None:
    with serving(cached_tokens=5) as server:
        usage = ask(settings(server)).usage
    assert (usage.cached_tokens, usage.estimated) == (5, False)
    assert usage.prompt_tokens > 5


def test_missing_usage_is_estimated_and_marked() -> None:
    with serving(usage=False, text="x" * 400) as server:
        usage = ask(settings(server)).usage
    assert usage.estimated
    assert 90 <= usage.completion_tokens <= 110
    assert usage.prompt_tokens > 10


def test_every_choice_of_n_is_kept() -> None:
    with serving() as server:
        completion = ask(settings(server, n=3))
    assert len(completion.choices) == 3
    assert len({choice.text for choice in completion.choices}) > 1


def test_the_model_that_the_server_names_is_kept_and_so_are_unknown_fields() -> None:
    with serving(model="tiny-2026-01-01") as server:
        completion = ask(settings(server))
    assert completion.model == "tiny-2026-01-01"
    assert completion.other["system_fingerprint"] == "fp_loopback"
    assert completion.other["id"].startswith("chatcmpl-")


def choice(**message: Any) -> dict[str, Any]:
    return {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}


@pytest.mark.parametrize(
    "reply",
    [
        [], "text", 7, None, {}, {"choices": None}, {"choices": {}}, {"choices": []}, {"choices": [None]},
        {"choices": [{"index": 0}]}, {"choices": [{"message": "text"}]},
    ],
)  # fmt: skip
def test_json_that_is_no_completion_is_a_failure_of_transport(statuses: Any, reply: Any) -> None:
    with pytest.raises(TransientError):
        answered(statuses, 200, reply if not isinstance(reply, str) else json.dumps(reply))


@pytest.mark.parametrize(
    "more",
    [
        {"usage": None}, {"usage": []}, {"usage": {}}, {"usage": {"prompt_tokens": "many"}},
        {"usage": {"prompt_tokens": 3, "completion_tokens": None}},
        {"usage": {"prompt_tokens": 3, "prompt_tokens_details": None}},
        {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": None}}},
        {"usage": {"prompt_tokens": 3, "completion_tokens": "many"}},
        {"usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": "few"}}},
        {"model": None}, {"model": 3}, {"id": None, "created": None},
    ],
)  # fmt: skip
def test_a_good_answer_with_odd_surroundings_is_a_good_answer(statuses: Any, more: dict[str, Any]) -> None:
    completion = answered(statuses, 200, {"choices": [choice(content="yes")], "model": "tiny", **more})
    assert completion.choices[0].text == "yes"
    assert completion.usage.completion_tokens >= 0
    assert completion.usage.prompt_tokens > 0
    assert isinstance(completion.model, str)


@pytest.mark.parametrize(
    ("message", "text", "refusal"),
    [
        ({"content": None}, None, None),
        ({}, None, None),
        ({"content": ["a part"]}, None, None),
        ({"content": None, "refusal": "No."}, None, "No."),
        ({"content": "x", "refusal": ""}, "x", None),
        ({"content": "", "reasoning_content": "secret"}, "", None),
    ],
)
def test_contents_are_text_or_missing(
    statuses: Any, message: dict[str, Any], text: str | None, refusal: str | None
) -> None:
    (found,) = answered(statuses, 200, {"choices": [{"finish_reason": "stop", "message": message}]}).choices
    assert (found.text, found.refusal) == (text, refusal)


@pytest.mark.parametrize("reason", [None, 3, ["stop"], {"a": 1}])
def test_an_odd_finish_reason_is_no_crash(statuses: Any, reason: Any) -> None:
    (found,) = answered(statuses, 200, {"choices": [{"finish_reason": reason, "message": {"content": "x"}}]}).choices
    assert found.finish_reason is None or isinstance(found.finish_reason, str)


def test_text_that_utf_8_cannot_hold_does_not_get_through(statuses: Any) -> None:
    """JSON can spell half a surrogate pair; a journal cannot write one."""
    with pytest.raises(TransientError):
        answered(statuses, 200, '{"choices": [{"finish_reason": "stop", "message": {"content": "\\ud800"}}]}')
