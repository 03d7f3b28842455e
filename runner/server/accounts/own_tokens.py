"""Tokens as whoever has them keeps them: listed, made and revoked, by a token or by a browser that is signed in.

A token makes none that may more, or lasts longer, than itself: one that leaks gains nothing by making others.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import Connection, or_, select

from runner.base.errors import NotPublished, UsageError
from runner.server.accounts.accounts import Scope, Viewer, make_token, revoke_token
from runner.server.accounts.administration import Token, listed_tokens, note_act
from runner.server.store.schema import tokens

MOST = 100
"""Of one account that are neither revoked nor expired."""
DAY = 24 * 3600.0
LONGEST_DAYS = 3_650


@dataclass(frozen=True)
class By:
    """Whose tokens, and the token that is asked by, or that a browser was signed in with."""

    viewer: Viewer
    token: str
    scope: Scope
    expires: float | None


def asked_by(connection: Connection, viewer: Viewer, token: str) -> By:
    """Who asks by a token of this id, which is good."""
    row = connection.execute(select(tokens).where(tokens.c.id == token)).one()
    return By(viewer, token, Scope(row.scope), row.expires)


def own_tokens(connection: Connection, viewer: Viewer, now: float) -> list[Token]:
    """The tokens of an account that are good, the newest first."""
    return [one for one in listed_tokens(connection, viewer.account) if one.state(now) == "good"]


def make_own(connection: Connection, by: By, scope: Scope, days: float, label: str) -> tuple[Token, str]:
    """A new token of who asks, and its text, which is told this once.

    Raises:
        PermissionError: who asks may not make one, or not one that may so much.
        UsageError: there are too many.
    """
    now, viewer = time.time(), by.viewer
    if not by.scope.allows(Scope.PUBLISH):
        raise PermissionError("a token that may read makes no others")
    if not by.scope.allows(scope):
        raise PermissionError(f"a token with the scope {by.scope} makes none with {scope}")
    if len(own_tokens(connection, viewer, now)) >= MOST:
        raise UsageError(f"this account has {MOST} tokens; revoke one first")
    seconds = days * DAY if by.expires is None else min(days * DAY, by.expires - now)
    made = make_token(connection, viewer.account, scope, now, seconds=seconds, label=label)
    identity = made.split("_")[1]
    note_act(connection, now, "add-token", f"{viewer.account} {identity} ({scope})", by=viewer.account)
    return next(one for one in listed_tokens(connection, viewer.account) if one.id == identity), made


def revoke_own(connection: Connection, by: By, identity: str) -> None:
    """Revoke a token of who asks; one that may read revokes itself alone.

    Raises:
        PermissionError: it may not.
        NotPublished: there is no such token that is good.
    """
    now = time.time()
    if identity != by.token and not by.scope.allows(Scope.PUBLISH):
        raise PermissionError("a token that may read revokes itself alone")
    good = or_(tokens.c.expires.is_(None), tokens.c.expires > now), tokens.c.revoked.is_(None)
    mine = tokens.c.id == identity, tokens.c.account_id == by.viewer.account_id
    row = connection.execute(select(tokens.c.scope).where(*mine, *good)).one_or_none()
    if row is None:
        raise NotPublished("you have no such token")
    if not by.scope.allows(Scope(row.scope)) and identity != by.token:
        raise PermissionError(f"a token with the scope {by.scope} revokes none with {row.scope}")
    revoke_token(connection, identity, now)
    note_act(connection, now, "revoke-token", identity, by=by.viewer.account)
