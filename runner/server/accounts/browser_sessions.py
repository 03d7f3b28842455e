"""A browser that is signed in: a word in its cookie, whose hash is kept for a while. It may what its token may."""

from __future__ import annotations

import hmac
import re
import secrets
from dataclasses import dataclass, replace

from sqlalchemy import Connection, delete, insert, select

from runner.server.accounts.accounts import Scope, Viewer, hash_secret, viewer_of, viewer_of_account
from runner.server.store.schema import accounts, browsers, tokens

SECONDS = 12 * 3600
_COOKIE = re.compile(r"(?P<id>[0-9a-f]{24})\.(?P<secret>[A-Za-z0-9_-]{43})")


@dataclass(frozen=True)
class SignedIn:
    """Who sits before a browser."""

    id: str
    viewer: Viewer
    """Who is signed in, with the token that says what the browser's forms may change; it only reads itself."""
    word: str
    """Stands in the forms of this browser's pages: a page of another site does not know it."""


def sign_in(connection: Connection, token: str, now: float) -> str | None:
    """The cookie of a browser that holds a token; None where the token is none."""
    viewer = viewer_of(connection, token, now)
    if viewer is None:
        return None
    connection.execute(delete(browsers).where(browsers.c.expires <= now))
    identity, secret = secrets.token_hex(12), secrets.token_urlsafe(32)
    row = {"id": identity, "token_id": viewer.token, "secret_sha256": hash_secret(secret), "expires": now + SECONDS}
    connection.execute(insert(browsers), row)
    return f"{identity}.{secret}"


def signed_in(connection: Connection, cookie: str, now: float) -> SignedIn | None:
    """Who a cookie belongs to; None once it, its token or its account holds no more."""
    shape = _COOKIE.fullmatch(cookie)
    row = connection.execute(
        select(browsers, tokens.c.account_id, tokens.c.revoked, tokens.c.expires.label("until"), accounts.c.disabled)
        .join(tokens, tokens.c.id == browsers.c.token_id)
        .join(accounts, accounts.c.id == tokens.c.account_id)
        .where(browsers.c.id == (shape["id"] if shape else ""))
    ).one_or_none()
    is_it = hmac.compare_digest(hash_secret(shape["secret"] if shape else ""), row.secret_sha256 if row else "0" * 64)
    if shape is None or row is None or not is_it or row.expires <= now:
        return None
    if row.revoked is not None or row.disabled is not None or (row.until is not None and row.until <= now):
        return None
    viewer = replace(viewer_of_account(connection, row.account_id), scope=Scope.READ, token=row.token_id)
    return SignedIn(row.id, viewer, hash_secret(f"form {shape['secret']}")[:40])


def sign_out(connection: Connection, found: SignedIn) -> None:
    """Have a cookie hold no more."""
    connection.execute(delete(browsers).where(browsers.c.id == found.id))
