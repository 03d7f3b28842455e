"""Errors of OpenAI-compatible servers: the exception that each of them raises."""

from __future__ import annotations

import inspect
import socket
from typing import Any

import httpx2
import openai
import pytest

from runner.base.errors import (
    CallError,
    ContextExceededError,
    NipRunError,
    ProviderRefusal,
    RefusedError,
    TransientError,
)
from runner.models.providers.client_errors import map_client_error
from runner.models.providers.openai_errors import parse_duration, retry_after
from tests.support.hang_guard import HANG_SECONDS
from tests.support.openai_calls import complete_chat, complete_with_answer, model_settings
from tests.support.servers.chat_client import run_chat_server


def raise_from_server(**options: Any) -> NipRunError:
    """Return the error that a call to a server with these options raises."""
    with run_chat_server(**options) as server, pytest.raises(NipRunError) as raised:
        complete_chat(model_settings(server, timeout=0.5 if options.get("kind") == "hang" else HANG_SECONDS))
    return raised.value


# Every class of failure


@pytest.mark.sample(2)
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
def test_failure_raises_its_class_with_its_status(kind: str, expected: type[NipRunError], status: int | None) -> None:
    error = raise_from_server(kind=kind)
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


@pytest.mark.parametrize(("status", "detail", "expected"), ROWS)
def test_error_code_raises_its_class(status: int, detail: dict[str, Any], expected: type[NipRunError]) -> None:
    with pytest.raises(NipRunError) as raised:
        complete_with_answer(status, {"error": {"message": "no", "type": None, "param": None, "code": None, **detail}})
    assert type(raised.value) is expected


@pytest.mark.parametrize(
    "body",
    ["", "plain text", "[]", "null", '{"detail": "x"}', '{"error": "x"}', '{"error": {"message": {}, "code": 7}}'],
)
@pytest.mark.parametrize(("status", "expected"), [(400, ProviderRefusal), (500, TransientError)])
def test_error_in_another_format_is_classified_by_its_status(
    body: str, status: int, expected: type[NipRunError]
) -> None:
    with pytest.raises(NipRunError) as raised:
        complete_with_answer(status, body)
    assert type(raised.value) is expected


def test_vllm_error_without_an_envelope_is_read() -> None:
    body = {"object": "error", "message": "This model's maximum context length is 8 tokens.", "code": 400}
    with pytest.raises(ContextExceededError):
        complete_with_answer(400, body)


@pytest.mark.parametrize(
    ("headers", "expected"),
    [({"retry-after": "7"}, 7.0), ({"retry-after-ms": "250", "retry-after": "9"}, 0.25), ({}, None)],
)
def test_rate_limit_error_carries_the_requested_wait(headers: dict[str, str], expected: float | None) -> None:
    with pytest.raises(TransientError) as raised:
        complete_with_answer(429, {"error": {"message": "slow"}}, headers)
    assert raised.value.retry_after == expected


def test_terminal_escapes_in_server_errors_are_removed() -> None:
    with pytest.raises(NipRunError) as raised:
        complete_with_answer(500, {"error": {"message": "\x1b]0;owned\x07\x1b[2J"}})
    assert "\x1b" not in str(raised.value)
    with pytest.raises(NipRunError) as raised:
        complete_with_answer(200, "\x1b[2J<html>")
    assert "\x1b" not in str(raised.value)


def test_unreachable_server_is_a_transient_error() -> None:
    with socket.socket() as reserved_socket:
        reserved_socket.bind(("127.0.0.1", 0))
        port = reserved_socket.getsockname()[1]
        with pytest.raises(TransientError, match=f"127.0.0.1:{port}"):
            complete_chat(model_settings(base_url=f"http://127.0.0.1:{port}/v1"))


def _make_client_error(kind: type[openai.OpenAIError], status: int) -> openai.OpenAIError:
    """Build an exception as the client does."""
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
    "LengthFinishReasonError", "ContentFilterFinishReasonError",  # raised by the parsing helpers
    "InvalidWebhookSignatureError", "WebSocketConnectionClosedError", "WebSocketQueueFullError",
    "SubjectTokenProviderError", "OAuthError",
}  # fmt: skip


def test_every_exported_client_exception_is_mapped() -> None:
    """A new exception class of the client fails here until it is mapped."""
    errors_by_name = {name: getattr(openai, name) for name in openai.__all__ if name.endswith("Error")}
    exported = {
        name: kind
        for name, kind in errors_by_name.items()
        if inspect.isclass(kind) and issubclass(kind, openai.OpenAIError) and name not in NOT_FROM_A_CALL
    }
    assert {"APITimeoutError", "RateLimitError", "InternalServerError"} <= exported.keys()
    statuses = {
        "BadRequestError": 400, "AuthenticationError": 401, "PermissionDeniedError": 403, "NotFoundError": 404,
        "ConflictError": 409, "UnprocessableEntityError": 422, "RateLimitError": 429,
    }  # fmt: skip
    refusal_names = {
        "BadRequestError", "AuthenticationError", "PermissionDeniedError", "NotFoundError", "UnprocessableEntityError",
    }  # fmt: skip
    for name, kind in exported.items():
        mapped = map_client_error(
            _make_client_error(kind, statuses.get(name, 500)), model_settings(base_url="http://127.0.0.1/v1"), "small"
        )
        assert type(mapped) is (ProviderRefusal if name in refusal_names else TransientError), name


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
        ({"llm_provider-retry-after": "7"}, 7.0),
        ({"llm_provider-retry-after-ms": "70", "retry-after": "7"}, 7.0),
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
def test_retry_after_returns_the_servers_wait_in_seconds(headers: dict[str, str], seconds: float | None) -> None:
    assert retry_after(httpx2.Headers(headers), now=10.0) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("12ms", 0.012), ("6s", 6.0), ("1m30s", 90.0), ("1h", 3600.0), ("1h2m3.5s", 3723.5), ("6", 6.0), ("0.5", 0.5),
        ("", None), ("soon", None), ("-1", None),
    ],
)  # fmt: skip
def test_durations_are_parsed_in_all_formats(text: str, seconds: float | None) -> None:
    assert parse_duration(text) == (None if seconds is None else pytest.approx(seconds))
