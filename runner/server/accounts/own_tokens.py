"""Lets an account list, create and revoke its own tokens, with a token or from a signed-in browser.

A new token never has a wider scope or a longer lifetime than the token that creates it. So a thief of a token cannot
gain more permissions or time.
"""

from __future__ import annotations

import time

from sqlalchemy import Connection, or_, select

from runner.base.errors import NotFoundError, UsageError
from runner.server.accounts.accounts import Scope, Viewer, create_token, revoke_token
from runner.server.accounts.administration import Token, list_tokens, log_action
from runner.server.store.schema import tokens

MAX_TOKENS = 100
"""Maximum number of valid tokens of one account."""
DAY = 24 * 3600.0
"""Seconds of a day."""
MAX_DAYS = 3_650


def token_scope(connection: Connection, viewer: Viewer) -> Scope:
    """Return the scope of the viewer's token: the request's token, or the token that signed the browser in."""
    return Scope(connection.execute(select(tokens.c.scope).where(tokens.c.id == viewer.token_id)).scalar_one())


def list_own_tokens(connection: Connection, viewer: Viewer, now: float) -> list[Token]:
    """Return the valid tokens of the viewer's account, newest first."""
    return [token for token in list_tokens(connection, viewer.account) if token.state(now) == "good"]


def create_own_token(
    connection: Connection, viewer: Viewer, scope: Scope, days: float, label: str
) -> tuple[Token, str]:
    """Create a token for the viewer's account; return its record and the secret token, which is not stored.

    Raises:
        PermissionError: the scope of the viewer's token does not allow it to create this token.
        UsageError: the account has too many tokens.
    """
    now, own_scope = time.time(), token_scope(connection, viewer)
    if not own_scope.allows(Scope.PUBLISH):
        raise PermissionError(
            f"a token with scope {Scope.READ} cannot create tokens; use one with scope {Scope.PUBLISH}"
        )
    if not own_scope.allows(scope):
        advice = f"ask the server's administrator for a token with scope {scope}"
        raise PermissionError(f"a token with scope {own_scope} cannot create a token with scope {scope}; {advice}")
    if len(list_own_tokens(connection, viewer, now)) >= MAX_TOKENS:
        raise UsageError(f"this account has {MAX_TOKENS} tokens, the maximum; revoke one on the page /mine/account")
    expires = connection.execute(select(tokens.c.expires).where(tokens.c.id == viewer.token_id)).scalar_one()
    lifetime_seconds = days * DAY if expires is None else min(days * DAY, expires - now)
    secret_token = create_token(connection, viewer.account, scope, now, lifetime_seconds=lifetime_seconds, label=label)
    token_id = secret_token.split("_")[1]
    log_action(connection, now, "add-token", f"{viewer.account} {token_id} ({scope})", by=viewer.account)
    return next(token for token in list_tokens(connection, viewer.account) if token.id == token_id), secret_token


def revoke_own_token(connection: Connection, viewer: Viewer, token_id: str) -> None:
    """Revoke a token of the viewer's account. A token with scope READ can revoke only itself.

    Raises:
        PermissionError: the scope of the viewer's token is too narrow.
        NotFoundError: the account has no such valid token.
    """
    now, own_scope = time.time(), token_scope(connection, viewer)
    if token_id != viewer.token_id and own_scope == Scope.READ:
        advice = f"use a token with scope {Scope.PUBLISH}"
        raise PermissionError(f"a token with scope {Scope.READ} can revoke only itself; {advice}")
    is_valid = or_(tokens.c.expires.is_(None), tokens.c.expires > now), tokens.c.revoked.is_(None)
    is_own_token = tokens.c.id == token_id, tokens.c.account_id == viewer.account_id
    row = connection.execute(select(tokens.c.scope).where(*is_own_token, *is_valid)).one_or_none()
    if row is None:
        raise NotFoundError(f"you have no valid token {token_id!r}; the page /mine/account lists your tokens")
    if token_id != viewer.token_id and not own_scope.allows(Scope(row.scope)):
        advice = f"use a token with scope {row.scope}"
        raise PermissionError(f"a token with scope {own_scope} cannot revoke one with scope {row.scope}; {advice}")
    revoke_token(connection, token_id, now)
    log_action(connection, now, "revoke-token", token_id, by=viewer.account)
