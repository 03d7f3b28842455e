"""Errors of requests: an HTML page for browsers, JSON for programs, and always a response."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass

import pytest
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.web.api_errors import error_response
from runner.server.web.error_pages import ErrorPage
from runner.server.web.rate_limits import RateLimit

BROWSER_ACCEPT, PROGRAM_ACCEPT = "text/html,application/xhtml+xml,*/*;q=0.8", "*/*"


@dataclass(frozen=True)
class AppResponse:
    status: int
    headers: dict[str, str]
    body: bytes


def request(app: ASGIApp, accept: str, path: str = "/owner/acme") -> AppResponse:
    """Return the response of an application wrapped in `ErrorPage`."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"accept", accept.encode())]}
    asyncio.run(call_app(ErrorPage(app), scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return AppResponse(sent[0]["status"], headers, b"".join(part.get("body", b"") for part in sent[1:]))


async def call_app(app: ASGIApp, *arguments: object) -> None:
    await app(*arguments)  # type: ignore[arg-type]


async def raise_error(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError("a secret of the program")


async def answer_too_many(scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(429, "too_many", "<b>slowly</b>", headers={"retry-after": "7"})(scope, receive, send)


@pytest.mark.parametrize(
    ("app", "status", "text"), [(raise_error, 500, "Something went wrong"), (answer_too_many, 429, "&lt;b&gt;slowly")]
)
def test_errors_are_pages_for_browsers_and_json_for_programs(app: ASGIApp, status: int, text: str) -> None:
    page, api_response = request(app, BROWSER_ACCEPT), request(app, PROGRAM_ACCEPT)
    assert (page.status, api_response.status) == (status, status)
    assert text in page.body.decode()
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    assert page.headers.get("retry-after") == api_response.headers.get("retry-after")
    assert set(json.loads(api_response.body)) == {"code", "message", "problems"}
    assert b"secret" not in page.body + api_response.body


def test_rate_limit_page_says_when_to_retry() -> None:
    limited_app = RateLimit(PlainTextResponse("here"), 0.05, (), lambda _: None)
    assert request(limited_app, BROWSER_ACCEPT).status == 200
    response = request(limited_app, BROWSER_ACCEPT)
    assert (response.status, response.headers["retry-after"]) == (429, "20")
    message = "Too many requests from this account or address; try again in 20 seconds."
    assert f'<p class="lead">{message}</p>' in response.body.decode()


def test_api_errors_are_json_even_for_browsers() -> None:
    assert json.loads(request(answer_too_many, BROWSER_ACCEPT, "/api/v1/releases").body)["code"] == "too_many"


def test_response_without_an_error_code_passes_through_unchanged() -> None:
    response = request(PlainTextResponse("not yet", 503), BROWSER_ACCEPT)
    assert (response.status, response.body) == (503, b"not yet")


def test_response_that_fails_midway_is_not_started_again() -> None:
    async def break_off(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        request(break_off, BROWSER_ACCEPT)
