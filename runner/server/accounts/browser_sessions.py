"""Browser sessions: a person signs a browser in with a token, and gets a cookie with the token's permissions.

Only the hash of the cookie's secret is stored. `runner.server.web.browser_session` reads the cookies.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, insert, select

from runner.server.accounts.accounts import Scope, Viewer, has_secret, hash_secret, viewer_of_account, viewer_of_token
from runner.server.store.schema import accounts, browsers, tokens

SESSION_SECONDS = 12 * 3600
_COOKIE_PATTERN = re.compile(r"(?P<id>[0-9a-f]{24})\.(?P<secret>[A-Za-z0-9_-]{43})")


@dataclass(frozen=True)
class BrowserSession:
    """A browser that is signed in."""

    id: str
    viewer: Viewer
    """The account, with the id of the token that signed the browser in. The scope is READ, so the cookie permits no
    changes; forms that change something check the scope of the token."""
    csrf_token: str
    """A secret in a hidden field of each form, so that pages of other sites cannot submit the form."""


def sign_in(connection: Connection, token: str, now: float) -> str | None:
    """Sign a browser in with a token; return the cookie of its session, or None if the token is not valid."""
    viewer = viewer_of_token(connection, token, now)
    if viewer is None:
        return None
    connection.execute(delete(browsers).where(browsers.c.expires <= now))
    session_id, secret = secrets.token_hex(12), secrets.token_urlsafe(32)
    expires = now + SESSION_SECONDS
    row = {"id": session_id, "token_id": viewer.token_id, "secret_sha256": hash_secret(secret), "expires": expires}
    connection.execute(insert(browsers), row)
    return f"{session_id}.{secret}"


def find_browser_session(connection: Connection, cookie: str, now: float) -> BrowserSession | None:
    """Return the session of a cookie, or None if the cookie, the token or the account is no longer valid."""
    match = _COOKIE_PATTERN.fullmatch(cookie)
    row = connection.execute(
        select(
            browsers,
            tokens.c.account_id,
            tokens.c.revoked,
            tokens.c.expires.label("token_expires"),
            accounts.c.disabled,
        )
        .join(tokens, tokens.c.id == browsers.c.token_id)
        .join(accounts, accounts.c.id == tokens.c.account_id)
        .where(browsers.c.id == (match["id"] if match else ""))
    ).one_or_none()
    is_correct = has_secret(row, match)
    if match is None or row is None or not is_correct or row.expires <= now:
        return None
    if row.revoked is not None or row.disabled is not None:
        return None
    if row.token_expires is not None and row.token_expires <= now:
        return None
    viewer = replace(viewer_of_account(connection, row.account_id), scope=Scope.READ, token_id=row.token_id)
    return BrowserSession(row.id, viewer, hash_secret(f"form {match['secret']}")[:40])


def sign_out(connection: Connection, session: BrowserSession) -> None:
    """End a session, so that its cookie is no longer valid."""
    connection.execute(delete(browsers).where(browsers.c.id == session.id))
