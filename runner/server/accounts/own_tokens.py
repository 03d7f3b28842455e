"""Tokens that an account manages itself: list, create and revoke, with a token or from a browser that is signed in.

A new token never has a wider scope or a longer life than the one that creates it, so a leaked token gains nothing.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, or_, select

from runner.base.errors import NotPublished, UsageError
from runner.server.accounts.accounts import Scope, Viewer, create_token, revoke_token
from runner.server.accounts.administration import Token, list_tokens, record_act
from runner.server.store.schema import tokens

MAX_TOKENS = 100
"""Maximum number of valid tokens of one account."""
DAY = 24 * 3600.0
MAX_DAYS = 3_650


def token_scope(connection: Connection, viewer: Viewer) -> Scope:
    """Return the scope of the viewer's token: the one in the request, or the one that signed the browser in."""
    return Scope(connection.execute(select(tokens.c.scope).where(tokens.c.id == viewer.token)).scalar_one())


def list_own_tokens(connection: Connection, viewer: Viewer, now: float) -> list[Token]:
    """Return the valid tokens of the viewer's account, newest first."""
    return [token for token in list_tokens(connection, viewer.account) if token.state(now) == "good"]


def create_own_token(
    connection: Connection, viewer: Viewer, scope: Scope, days: float, label: str
) -> tuple[Token, str]:
    """Create a token for the viewer's account; return it and its text, which is not stored.

    Raises:
        PermissionError: the viewer's token has a narrower scope than the new one, or may not create tokens.
        UsageError: the account has too many tokens.
    """
    now, own_scope = time.time(), token_scope(connection, viewer)
    if not own_scope.allows(Scope.PUBLISH):
        raise PermissionError(f"a token with scope {Scope.READ} cannot create tokens; use one with {Scope.PUBLISH}")
    if not own_scope.allows(scope):
        raise PermissionError(f"a token with scope {own_scope} cannot create one with {scope}")
    if len(list_own_tokens(connection, viewer, now)) >= MAX_TOKENS:
        raise UsageError(f"this account has {MAX_TOKENS} tokens; revoke one first")
    expires = connection.execute(select(tokens.c.expires).where(tokens.c.id == viewer.token)).scalar_one()
    seconds = days * DAY if expires is None else min(days * DAY, expires - now)
    text = create_token(connection, viewer.account, scope, now, seconds=seconds, label=label)
    identity = text.split("_")[1]
    record_act(connection, now, "add-token", f"{viewer.account} {identity} ({scope})", by=viewer.account)
    return next(token for token in list_tokens(connection, viewer.account) if token.id == identity), text


def revoke_own_token(connection: Connection, viewer: Viewer, identity: str) -> None:
    """Revoke a token of the viewer's account. A token with scope READ can revoke only itself.

    Raises:
        PermissionError: the scope of the viewer's token is too narrow.
        NotPublished: the account has no such valid token.
    """
    now, own_scope = time.time(), token_scope(connection, viewer)
    if identity != viewer.token and not own_scope.allows(Scope.PUBLISH):
        raise PermissionError(f"a token with scope {Scope.READ} can revoke only itself")
    valid = or_(tokens.c.expires.is_(None), tokens.c.expires > now), tokens.c.revoked.is_(None)
    mine = tokens.c.id == identity, tokens.c.account_id == viewer.account_id
    row = connection.execute(select(tokens.c.scope).where(*mine, *valid)).one_or_none()
    if row is None:
        raise NotPublished("you have no such token")
    if not own_scope.allows(Scope(row.scope)) and identity != viewer.token:
        raise PermissionError(f"a token with scope {own_scope} cannot revoke one with {row.scope}")
    revoke_token(connection, identity, now)
    record_act(connection, now, "revoke-token", identity, by=viewer.account)
