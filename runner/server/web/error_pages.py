"""What went wrong, as a page where a browser asks for one; what nobody foresaw, as a fault like any other."""

from __future__ import annotations

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.pages.report.served import POLICY, ServedPage, served
from runner.server.web.api_errors import fault
from runner.server.web.views import View

LOG = logging.getLogger("nip_run.server")

_FOR_PROGRAMS = ("/api/", "/healthz", "/readyz", "/metrics")
_TITLES = {403: "Not allowed", 404: "Not here", 405: "Not possible", 422: "Not understood", 429: "Too many requests",
           503: "Not now"}  # fmt: skip
_MESSAGES = {
    404: "There is no such page. What is private is shown to its owners alone.",
    405: "This address takes no such request.",
    422: "The address is not one that this server makes.",
    500: "Internal error. The administrator can find details in the server log.",
}
"""Messages for people, in place of the API's message."""


@dataclass(frozen=True, kw_only=True)
class ErrorView(View):
    """The page of an error."""

    template = "wrong"
    message: str
    problems: Sequence[str]
    status: int
    code: str


class ErrorPage:
    """Has the faults of pages be pages, and every error answered for."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_begun, held = False, list[Message]()

        async def told(message: Message) -> None:
            nonlocal has_begun
            if message["type"] == "http.response.start" and _is_for_people(scope, message):
                held.append(message)
                return
            if held:
                held.append(message)
                if not message.get("more_body"):
                    has_begun = True
                    await _page_of(held)(scope, receive, send)
                return
            has_begun = True
            await send(message)

        try:
            await self._app(scope, receive, told)
        except Exception:
            LOG.exception("a request failed", extra={"path": scope["path"]})
            if has_begun:
                raise
            held.clear()
            answer = fault(500, "failed", "the server failed; its log says why")
            await answer(scope, receive, told)


def _is_for_people(scope: Scope, start: Message) -> bool:
    """Whether a fault is the answer to a browser that asks for a page."""
    if start["status"] < 400 or scope["path"].startswith(_FOR_PROGRAMS):
        return False
    return "text/html" in Headers(scope=scope).get("accept", "") and (
        Headers(raw=start["headers"]).get("content-type", "").startswith("application/json")
    )


def _page_of(held: list[Message]) -> Response:
    status = int(held[0]["status"])
    said = _fault_of(b"".join(message.get("body", b"") for message in held[1:]))
    view = ErrorView(
        message=_MESSAGES.get(status) or _sentence(str(said.get("message", ""))), problems=said.get("problems", []),
        status=status, code=HTTPStatus(status).phrase,
    )  # fmt: skip
    page = ServedPage(_TITLES.get(status, "Something went wrong"), [("wrong", view.render())])
    kept = {name: value for name, value in Headers(raw=held[0]["headers"]).items() if name in ("retry-after", "allow")}
    headers = {**kept, "content-security-policy": POLICY, "referrer-policy": "same-origin", "cache-control": "no-store"}
    return Response(served(page), status, headers, "text/html; charset=utf-8")


def _sentence(words: str) -> str:
    """Return a message of the API as a sentence of a page."""
    return words and f"{words[0].upper()}{words[1:]}{'' if words.endswith('.') else '.'}"


def _fault_of(body: bytes) -> dict[str, Any]:
    try:
        found = json.loads(body)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
