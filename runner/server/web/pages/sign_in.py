"""Pages for signing in with a token and signing out, and the list of an account's private releases."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import APIRouter, Depends, Request
from sqlalchemy import select
from starlette.responses import RedirectResponse, Response

from runner.pages.report.served import ServedPage, View
from runner.server.accounts.accounts import viewer_of_token
from runner.server.accounts.browser_sessions import SESSION_SECONDS, BrowserSession, sign_in, sign_out
from runner.server.store.schema import files, reference_of, releases
from runner.server.visible_releases import find_added_files, visible_to
from runner.server.web.authentication import server_of
from runner.server.web.browser_session import SESSION_COOKIE, Form, cookie_name, find_session, is_valid_form
from runner.server.web.pages.runs import is_private, private_release_facts
from runner.server.web.pages.site import ListingView, Session
from runner.server.web.responses import PRIVATE, page_response
from runner.server.web.views import ReleaseLine, private_href

pages = APIRouter(include_in_schema=False)

FORM_SECONDS = 3600
"""Time until a form for signing in expires."""
_FORM_COOKIE = "nip-run-form"
"""Name of the cookie with the CSRF token of the form for signing in. Other forms use the token of the session."""
_MAX_LISTED = 1_000


@dataclass(frozen=True, kw_only=True)
class SignInView(View):
    """The form for signing in with a token."""

    template = "login"
    problem: str
    csrf_token: str


def _set_cookie(request: Request, response: Response, name: str, value: str, max_age: int) -> None:
    secure = server_of(request).settings.address.startswith("https:")
    response.set_cookie(
        cookie_name(request, name), value, max_age=max_age, path="/", secure=secure, httponly=True, samesite="strict"
    )


@pages.get("/login")
def sign_in_page(request: Request) -> Response:
    """Show the form for signing in."""
    return _show_form(request, "", 200)


def _show_form(request: Request, problem: str, status: int) -> Response:
    csrf_token = secrets.token_urlsafe(24)
    page = ServedPage(
        "Sign in", [("login", SignInView(problem=problem, csrf_token=csrf_token).render())], nav_path="/mine"
    )
    response = page_response(request, page, status=status, cache_control=PRIVATE)
    _set_cookie(request, response, _FORM_COOKIE, csrf_token, FORM_SECONDS)
    return response


@pages.post("/login")
def log_in(request: Request, form: Form) -> Response:
    """Sign a browser in."""
    if not is_valid_form(request, form, request.cookies.get(cookie_name(request, _FORM_COOKIE), "")):
        return _show_form(request, "This form has expired, or is not from this server. Submit it again.", 403)
    cookie = _start_session(request, form.get("token", "").strip())
    if cookie is None:
        return _show_form(request, "This token is unknown, expired or revoked. Ask the administrator for one.", 401)
    response = RedirectResponse("/mine", 303, {"cache-control": PRIVATE})
    _set_cookie(request, response, SESSION_COOKIE, cookie, SESSION_SECONDS)
    response.delete_cookie(cookie_name(request, _FORM_COOKIE), path="/")
    return response


def _start_session(request: Request, token: str) -> str | None:
    """Start a session with a token; return the session's cookie, or None if the token is invalid."""
    database = server_of(request).database
    # An invalid token must not open a write transaction, because other writers would wait for it.
    with database.reading() as connection:
        if viewer_of_token(connection, token, time.time()) is None:
            return None
    with database.writing() as connection:
        return sign_in(connection, token, time.time())


@pages.post("/logout")
def log_out(request: Request, session: Annotated[BrowserSession | None, Depends(find_session)], form: Form) -> Response:
    """Sign a browser out: end its session and delete its cookie."""
    if session is not None:
        if not is_valid_form(request, form, session.csrf_token):
            message = "You are still signed in: this form has expired, or is not from this server. Sign out again."
            return _show_form(request, message, 403)
        with server_of(request).database.writing() as connection:
            sign_out(connection, session)
    response = RedirectResponse("/", 303, {"cache-control": PRIVATE})
    response.delete_cookie(cookie_name(request, SESSION_COOKIE), path="/")
    return response


@pages.get("/mine")
def mine(request: Request, session: Session) -> Response:
    """Show the private releases of the signed-in account."""
    viewer = session.viewer
    server, query = server_of(request), select(releases).where(is_private, visible_to(viewer))
    with server.database.reading() as connection:
        rows = connection.execute(query.order_by(releases.c.created.desc()).limit(_MAX_LISTED)).all()
        additions = find_added_files(connection, files.c.release_id.in_([row.id for row in rows]))
    lines = [
        ReleaseLine.from_facts(private_release_facts(row, additions, server.blobs), private_href(reference_of(row)))
        for row in rows
    ]
    audience = "Only you and the members of the owning organizations see these releases."
    lead = [audience if lines else "You have no private releases. Publish one with nip-run publish --private."]
    lead.append(f"You see private releases of: {', '.join(sorted(viewer.account_names))}.")
    view = ListingView(lead=lead, tables=[("", lines)], links=[("/mine/account", "Your tokens and organizations")])
    section = [("mine", view.render())]
    page = ServedPage(
        "Private releases", section, nav_path="/mine", account=viewer.account, csrf_token=session.csrf_token
    )
    return page_response(request, page, cache_control=PRIVATE)
