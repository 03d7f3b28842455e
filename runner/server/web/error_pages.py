"""Middleware that shows errors to browsers as pages, and answers status 500 after an unexpected exception."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.pages.report.served import CONTENT_SECURITY_POLICY, ServedPage, View, render_served
from runner.server.web.api_errors import ApiError, error_response
from runner.server.web.responses import HTML

LOG = logging.getLogger("nip_run.server")

_PROGRAM_PATHS = ("/api/", "/healthz", "/readyz", "/metrics")
"""Beginnings of the paths for programs, which get no error pages."""
_TITLES = {403: "Not allowed", 404: "Page not found", 405: "Not allowed", 422: "Invalid address",
           429: "Too many requests", 503: "Temporarily unavailable"}  # fmt: skip
_MESSAGES = {
    404: "There is no such page, or it is private. Check the address, or sign in as the owner of a private release.",
    405: "This address does not accept this HTTP method. Follow a link on a page of this server.",
    422: "The address is not valid. Follow a link on a page of this server.",
    500: "Internal error. The administrator can find details in the server log.",
}
"""Messages on error pages, by status. Other statuses show the message of the API."""


@dataclass(frozen=True, kw_only=True)
class ErrorView(View):
    """The page of an error."""

    template = "error"
    message: str
    problems: Sequence[str]
    status: int
    code: str


class ErrorPage:
    """Middleware that turns error responses into pages for browsers, and exceptions into error responses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        has_started, error_messages = False, list[Message]()

        async def send_or_collect(message: Message) -> None:
            """Forward a message, or collect the messages of an error response and then send a page instead."""
            nonlocal has_started
            if message["type"] == "http.response.start" and _needs_page(scope, message):
                error_messages.append(message)
                return
            if error_messages:
                error_messages.append(message)
                if not message.get("more_body"):
                    has_started = True
                    await _build_error_page(error_messages)(scope, receive, send)
                return
            has_started = True
            await send(message)

        try:
            await self._app(scope, receive, send_or_collect)
        except Exception:
            LOG.exception("a request failed", extra={"path": scope["path"]})
            if has_started:
                raise
            error_messages.clear()
            message = "internal error; the administrator can find details in the server log"
            await error_response(500, "failed", message)(scope, receive, send_or_collect)


def _needs_page(scope: Scope, start: Message) -> bool:
    """Return whether a response is an API error, but the request is a browser's request for a page."""
    if start["status"] < 400 or scope["path"].startswith(_PROGRAM_PATHS):
        return False
    return "text/html" in Headers(scope=scope).get("accept", "") and (
        Headers(raw=start["headers"]).get("content-type", "").startswith("application/json")
    )


def _build_error_page(error_messages: list[Message]) -> Response:
    start, *body = error_messages
    status = int(start["status"])
    error = ApiError.model_validate_json(b"".join(message.get("body", b"") for message in body))
    view = ErrorView(
        message=_MESSAGES.get(status) or _to_sentence(error.message), problems=error.problems, status=status,
        code=HTTPStatus(status).phrase,
    )  # fmt: skip
    page = ServedPage(_TITLES.get(status, "Something went wrong"), [("wrong", view.render())])
    original = Headers(raw=start["headers"])
    headers = {name: original[name] for name in ("retry-after", "allow") if name in original}
    headers |= {
        "content-security-policy": CONTENT_SECURITY_POLICY,
        "referrer-policy": "same-origin",
        "cache-control": "no-store",
    }
    return Response(render_served(page), status, headers, HTML)


def _to_sentence(message: str) -> str:
    """Return an API message as a sentence: with a capital letter and a full stop."""
    return f"{message[0].upper()}{message[1:]}{'' if message.endswith('.') else '.'}"
