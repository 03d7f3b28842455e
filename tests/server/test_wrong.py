"""What goes wrong with a request: a page for people, a fault for programs, and nothing unanswered."""

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

PERSON, PROGRAM = "text/html,application/xhtml+xml,*/*;q=0.8", "*/*"


@dataclass(frozen=True)
class AppResponse:
    status: int
    headers: dict[str, str]
    body: bytes


def request(app: ASGIApp, accept: str, path: str = "/owner/acme") -> AppResponse:
    """What an application answers that is wrapped."""
    sent: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request"}

    async def send(message: Message) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "headers": [(b"accept", accept.encode())]}
    asyncio.run(_called(ErrorPage(app), scope, receive, send))
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return AppResponse(sent[0]["status"], headers, b"".join(one.get("body", b"") for one in sent[1:]))


async def _called(app: ASGIApp, *with_: object) -> None:
    await app(*with_)  # type: ignore[arg-type]


async def fails(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError("a secret of the program")


async def too_many(scope: Scope, receive: Receive, send: Send) -> None:
    await error_response(429, "too_many", "<b>slowly</b>", headers={"retry-after": "7"})(scope, receive, send)


@pytest.mark.parametrize(
    ("app", "status", "said"), [(fails, 500, "Something went wrong"), (too_many, 429, "&lt;b&gt;slowly")]
)
def test_a_browser_is_shown_a_page_and_a_program_a_fault(app: ASGIApp, status: int, said: str) -> None:
    page, for_program = request(app, PERSON), request(app, PROGRAM)
    assert (page.status, for_program.status) == (status, status)
    assert said in page.body.decode()
    assert "script-src 'self'" in page.headers["content-security-policy"]
    assert page.headers["cache-control"] == "no-store"
    assert page.headers.get("retry-after") == for_program.headers.get("retry-after")
    assert set(json.loads(for_program.body)) == {"code", "message", "problems"}
    assert b"secret" not in page.body + for_program.body


def test_a_page_says_when_to_come_again() -> None:
    one_in_twenty_seconds = RateLimit(PlainTextResponse("here"), 0.05, (), lambda _: False)
    assert request(one_in_twenty_seconds, PERSON).status == 200
    told = request(one_in_twenty_seconds, PERSON)
    assert (told.status, told.headers["retry-after"]) == (429, "20")
    said = "Too many requests from this token or address; try again in 20 seconds."
    assert f'<p class="lead">{said}</p>' in told.body.decode()


def test_the_api_answers_programs_whoever_asks() -> None:
    assert json.loads(request(too_many, PERSON, "/api/v1/releases").body)["code"] == "too_many"


def test_an_answer_that_is_no_fault_goes_through_as_it_is() -> None:
    told = request(PlainTextResponse("not yet", 503), PERSON)
    assert (told.status, told.body) == (503, b"not yet")


def test_an_answer_that_breaks_off_is_not_begun_again() -> None:
    async def breaks(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        request(breaks, PERSON)
