"""Tokens as whoever has them keeps them: listed, made and revoked, by a token or by a browser that is signed in.

A token makes none that may more, or lasts longer, than itself: one that leaks gains nothing by making others.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, or_, select

from runner.base.errors import NotPublished, UsageError
from runner.server.accounts.accounts import Scope, Viewer, make_token, revoke_token
from runner.server.accounts.administration import Token, listed_tokens, note_act
from runner.server.store.schema import tokens

MOST = 100
"""Of one account that are neither revoked nor expired."""
DAY = 24 * 3600.0
LONGEST_DAYS = 3_650


def token_scope(connection: Connection, viewer: Viewer) -> Scope:
    """Return the scope of the viewer's token, which a browser was signed in with, or a request has."""
    return Scope(connection.execute(select(tokens.c.scope).where(tokens.c.id == viewer.token)).scalar_one())


def own_tokens(connection: Connection, viewer: Viewer, now: float) -> list[Token]:
    """The tokens of an account that are good, the newest first."""
    return [one for one in listed_tokens(connection, viewer.account) if one.state(now) == "good"]


def make_own(connection: Connection, viewer: Viewer, scope: Scope, days: float, label: str) -> tuple[Token, str]:
    """Make a token of the viewer's account; return it and its text, which is shown this once.

    Raises:
        PermissionError: who asks may not make one, or not one that may so much.
        UsageError: there are too many.
    """
    now, own_scope = time.time(), token_scope(connection, viewer)
    if not own_scope.allows(Scope.PUBLISH):
        raise PermissionError("a token that may read makes no others")
    if not own_scope.allows(scope):
        raise PermissionError(f"a token with the scope {own_scope} makes none with {scope}")
    if len(own_tokens(connection, viewer, now)) >= MOST:
        raise UsageError(f"this account has {MOST} tokens; revoke one first")
    expires = connection.execute(select(tokens.c.expires).where(tokens.c.id == viewer.token)).scalar_one()
    seconds = days * DAY if expires is None else min(days * DAY, expires - now)
    made = make_token(connection, viewer.account, scope, now, seconds=seconds, label=label)
    identity = made.split("_")[1]
    note_act(connection, now, "add-token", f"{viewer.account} {identity} ({scope})", by=viewer.account)
    return next(one for one in listed_tokens(connection, viewer.account) if one.id == identity), made


def revoke_own(connection: Connection, viewer: Viewer, identity: str) -> None:
    """Revoke a token of the viewer's account; a token that may only read revokes only itself.

    Raises:
        PermissionError: it may not.
        NotPublished: there is no such token that is good.
    """
    now, own_scope = time.time(), token_scope(connection, viewer)
    if identity != viewer.token and not own_scope.allows(Scope.PUBLISH):
        raise PermissionError("a token that may read revokes itself alone")
    good = or_(tokens.c.expires.is_(None), tokens.c.expires > now), tokens.c.revoked.is_(None)
    mine = tokens.c.id == identity, tokens.c.account_id == viewer.account_id
    row = connection.execute(select(tokens.c.scope).where(*mine, *good)).one_or_none()
    if row is None:
        raise NotPublished("you have no such token")
    if not own_scope.allows(Scope(row.scope)) and identity != viewer.token:
        raise PermissionError(f"a token with the scope {own_scope} revokes none with {row.scope}")
    revoke_token(connection, identity, now)
    note_act(connection, now, "revoke-token", identity, by=viewer.account)
