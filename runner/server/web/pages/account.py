"""The page of the signed-in account: its tokens, and the organizations that it belongs to or is invited to.

A browser has the permissions of the token that signed it in. Each form contains the browser's CSRF token.
"""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import APIRouter, Request
from sqlalchemy import Connection
from starlette.responses import RedirectResponse, Response

from runner.base.errors import NotFoundError, UsageError
from runner.pages.report.served import ServedPage, View
from runner.server.accounts import organizations
from runner.server.accounts.accounts import Scope, Viewer
from runner.server.accounts.browser_sessions import BrowserSession
from runner.server.accounts.organizations import OrganizationView
from runner.server.accounts.own_tokens import MAX_DAYS, create_own_token, list_own_tokens, revoke_own_token, token_scope
from runner.server.web.authentication import server_of
from runner.server.web.browser_session import Form, is_valid_form
from runner.server.web.pages.site import Session
from runner.server.web.responses import PRIVATE, page_response
from runner.server.web.views import format_day

pages = APIRouter(include_in_schema=False)


@dataclass(frozen=True, kw_only=True)
class TokenLine:
    """A token in the list of an account."""

    id: str
    scope: str
    label: str
    created: str
    expires: str


@dataclass(frozen=True, kw_only=True)
class AccountView(View):
    """Tokens and organizations of an account, with forms that change them."""

    template = "account"
    tokens: Sequence[TokenLine]
    organizations: Sequence[OrganizationView]
    can_change: bool
    """Whether the browser may change tokens and members."""
    problem: str
    new_token: str
    """The text of a new token, which is shown only once; "" if there is none."""
    csrf_token: str
    max_days: int
    account: str


@pages.get("/mine/account")
def account(request: Request, session: Session) -> Response:
    """Show the tokens and organizations of the account."""
    return _account_page(request, session)


@pages.post("/mine/account")
def change_account(request: Request, session: Session, form: Form) -> Response:
    """Apply a form of the account's page."""
    if not is_valid_form(request, form, session.csrf_token):
        problem = "This form has expired, or is not from this server. Reload the page and submit it again."
        return _account_page(request, session, problem=problem, status=403)
    server = server_of(request)
    try:
        with server.database.writing() as connection:
            token = _apply_form(connection, session.viewer, form)
            server.database.increment_revision(connection)
    except (UsageError, NotFoundError, PermissionError) as error:
        return _account_page(request, session, problem=f"{error}.", status=400)
    if token is not None:
        return _account_page(request, session, new_token=token)
    return RedirectResponse("/mine/account", 303, {"cache-control": PRIVATE})


def _apply_form(connection: Connection, viewer: Viewer, form: dict[str, str]) -> str | None:
    """Make the change that a form requests; return the text of the new token if the form creates one.

    Raises:
        UsageError, NotFoundError, PermissionError: the change is impossible, or the token does not allow it.
    """
    action, name, account_name = form.get("what", ""), form.get("name", ""), form.get("account", "").strip()
    if not token_scope(connection, viewer).allows(Scope.PUBLISH):
        raise PermissionError("Your token has scope read. To make changes, sign in with a token of scope publish")
    if action == "make":
        return create_own_token(
            connection, viewer, _parse_scope(form), _parse_days(form), form.get("label", "").strip()[:200]
        )[1]
    if action == "revoke":
        revoke_own_token(connection, viewer, form.get("token", ""))
    elif action == "accept":
        organizations.accept_invitation(connection, viewer, name)
    elif action == "set":
        organizations.set_member(connection, viewer, name, account_name, is_owner=form.get("place") == "owner")
    elif action == "remove":
        organizations.remove_from_organization(connection, viewer, name, account_name)
    else:
        raise UsageError("The form is unknown. Reload the page and submit it again")
    return None


def _parse_scope(form: dict[str, str]) -> Scope:
    if form.get("scope") not in (Scope.READ, Scope.PUBLISH):
        raise UsageError("Choose read or publish as the scope of the token")
    return Scope(form["scope"])


def _parse_days(form: dict[str, str]) -> float:
    days = form.get("days", "")
    if not re.fullmatch("[0-9]{1,4}", days) or not 1 <= int(days) <= MAX_DAYS:
        raise UsageError(f"Choose a number of days from 1 to {MAX_DAYS} for the token")
    return float(days)


def _account_page(
    request: Request, session: BrowserSession, *, problem: str = "", new_token: str = "", status: int = 200
) -> Response:
    viewer = session.viewer
    with server_of(request).database.reading() as connection:
        tokens = [
            TokenLine(id=token.id, scope=token.scope, label=token.label, created=format_day(token.created),
                      expires="never" if token.expires is None else format_day(token.expires))
            for token in list_own_tokens(connection, viewer, time.time())
        ]  # fmt: skip
        view = AccountView(
            tokens=tokens, organizations=organizations.list_organizations(connection, viewer),
            can_change=token_scope(connection, viewer).allows(Scope.PUBLISH), problem=problem, new_token=new_token,
            csrf_token=session.csrf_token, max_days=MAX_DAYS, account=viewer.account,
        )  # fmt: skip
    links = [("/", "Boards"), ("/mine", "Private releases")]
    section = [("account", view.render())]
    page = ServedPage("Your account", section, links=links, account=viewer.account, csrf_token=session.csrf_token)
    return page_response(request, page, status=status, cache_control=PRIVATE)
