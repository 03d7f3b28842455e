"""Reads the session cookies of browsers, and the forms that browsers submit, for the pages in `web/pages/`."""

from __future__ import annotations

import hmac
import re
import time
from typing import Annotated
from urllib.parse import parse_qs

from fastapi import Depends, Request

from runner.server.accounts.browser_sessions import BrowserSession, find_browser_session
from runner.server.web.authentication import server_of

SESSION_COOKIE = "nip-run-session"
MAX_FORM_BYTES = 4_096
MAX_FIELDS = 10


def cookie_name(request: Request, name: str) -> str:
    """Return a cookie's name. With TLS, it has a prefix that prevents other hosts from setting the cookie."""
    return f"__Host-{name}" if server_of(request).settings.address.startswith("https:") else name


def find_session(request: Request) -> BrowserSession | None:
    """Return the session of a request's cookie. Cookies are valid for pages only, never for the API."""
    with server_of(request).database.reading() as connection:
        return find_browser_session(
            connection, request.cookies.get(cookie_name(request, SESSION_COOKIE), ""), time.time()
        )


async def read_form(request: Request) -> dict[str, str]:
    """Return the fields of a form; an empty dictionary if it is too large, has too many fields, or is not a form."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return {}
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MAX_FORM_BYTES:
            return {}
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), max_num_fields=MAX_FIELDS)
    except ValueError:  # too many fields
        return {}
    return {name: re.sub(r"[\x00-\x1f\x7f]", "", values[0]) for name, values in fields.items()}


Form = Annotated[dict[str, str], Depends(read_form)]


def is_valid_form(request: Request, form: dict[str, str], csrf_token: str) -> bool:
    """Return whether a form has the right CSRF token (in the field `word`) and was sent from a page of this server."""
    is_correct = bool(csrf_token) and hmac.compare_digest(form.get("word", "").encode(), csrf_token.encode())
    return is_correct and is_same_origin(request)


def is_same_origin(request: Request) -> bool:
    """Return whether a form was sent from a page of this server, according to the browser's headers."""
    site = request.headers.get("sec-fetch-site", "same-origin")
    origin = request.headers.get("origin")
    host = request.headers.get("host", "")
    return site in ("same-origin", "none") and (origin is None or re.sub(r"^https?://", "", origin) == host)
