"""The page of whoever is signed in: tokens made and revoked, organisations joined, left, and their members changed.

A browser may what the token may that it was signed in with; each form has that browser's word in it.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.concurrency import run_in_threadpool
from starlette.responses import RedirectResponse, Response

from runner.base.errors import NotPublished, UsageError
from runner.pages.html import rendered
from runner.pages.report.served import ServedPage
from runner.server.accounts import organizations as people
from runner.server.accounts.accounts import Scope, Viewer
from runner.server.accounts.administration import Token
from runner.server.accounts.browser_sessions import SignedIn
from runner.server.accounts.own_tokens import LONGEST_DAYS, make_own, own_tokens, revoke_own, token_scope
from runner.server.web.authentication import server_of
from runner.server.web.browser_session import who
from runner.server.web.forms import from_here, posted, same
from runner.server.web.responses import PRIVATE, page_answer
from runner.server.web.wording import day

pages = APIRouter(include_in_schema=False)


@pages.get("/mine/account")
def account(request: Request) -> Response:
    """One's tokens and organisations."""
    found = who(request)
    return _to_login() if found is None else _page(request, found)


@pages.post("/mine/account")
async def change(request: Request) -> Response:
    """What a form of that page asks for."""
    said = await posted(request)
    found = await run_in_threadpool(who, request)
    if found is None:
        return _to_login()
    if not from_here(request) or not same(said.get("word", ""), found.word):
        wrong = "This form came from elsewhere; nothing was done."
        return await run_in_threadpool(_page, request, found, wrong=wrong, status=403)
    return await run_in_threadpool(_changed, request, found, said)


def _changed(request: Request, found: SignedIn, said: Mapping[str, str]) -> Response:
    server = server_of(request)
    try:
        with server.database.writing() as connection:
            made = _done(connection, found.viewer, said)
            server.database.changed(connection)
    except (UsageError, NotPublished, PermissionError) as error:
        return _page(request, found, wrong=f"{error}.", status=400)
    if made is not None:
        return _page(request, found, made=made)
    return RedirectResponse("/mine/account", 303, {"cache-control": PRIVATE})


def _done(connection: Connection, viewer: Viewer, said: Mapping[str, str]) -> str | None:
    """Do what a form asks for; a new token, where it is that.

    Raises:
        UsageError, NotPublished, PermissionError: it cannot be, or not by this token.
    """
    what, name, other = said.get("what", ""), said.get("name", ""), said.get("account", "").strip()
    if not token_scope(connection, viewer).allows(Scope.PUBLISH):
        raise PermissionError("You signed in with a token that may read: it changes nothing here")
    if what == "make":
        return make_own(connection, viewer, _scope(said), _days(said), said.get("label", "").strip()[:200])[1]
    if what == "revoke":
        revoke_own(connection, viewer, said.get("token", ""))
    elif what == "accept":
        people.accept(connection, viewer, name)
    elif what == "set":
        people.set_member(connection, viewer, name, other, is_owner=said.get("place") == "owner")
    elif what == "remove":
        people.remove(connection, viewer, name, other)
    else:
        raise UsageError("This form is none of ours")
    return None


def _scope(said: Mapping[str, str]) -> Scope:
    if said.get("scope") not in (Scope.READ, Scope.PUBLISH):
        raise UsageError("A token reads or publishes")
    return Scope(said["scope"])


def _days(said: Mapping[str, str]) -> float:
    days = said.get("days", "")
    if not days.isascii() or not days.isdigit() or not 1 <= int(days[:6]) <= LONGEST_DAYS:
        raise UsageError(f"A token lasts 1 to {LONGEST_DAYS} days")
    return float(days)


def _to_login() -> Response:
    return RedirectResponse("/login", 303, {"cache-control": PRIVATE})


def _page(request: Request, found: SignedIn, *, wrong: str = "", made: str = "", status: int = 200) -> Response:
    with server_of(request).database.reading() as connection:
        facts: dict[str, Any] = {
            "tokens": [_line(one) for one in own_tokens(connection, found.viewer, time.time())],
            "organisations": people.organisations_of(connection, found.viewer),
            "changes": token_scope(connection, found.viewer).allows(Scope.PUBLISH),
        }
    facts |= {"wrong": wrong, "made": made, "word": found.word, "longest": LONGEST_DAYS, "who": found.viewer.account}
    section = rendered("served/account.html", facts)
    links = [("/", "Boards"), ("/mine", "Private releases")]
    page = ServedPage("Your account", [("account", section)], links=links, who=found.viewer.account, word=found.word)
    return page_answer(request, page, status=status, cache=PRIVATE)


def _line(one: Token) -> dict[str, str]:
    expires = "never" if one.expires is None else day(one.expires)
    return {"id": one.id, "scope": one.scope, "label": one.label, "made": day(one.created), "expires": expires}
