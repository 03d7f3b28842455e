"""Who sits before a browser: what its cookie says."""

from __future__ import annotations

import time

from fastapi import Request
from sqlalchemy import select

from runner.server.accounts.browser_sessions import SignedIn, signed_in
from runner.server.store.schema import releases
from runner.server.visible_tree import seen_by
from runner.server.web.authentication import server_of

SESSION = "nip-run-session"


def cookie_name(request: Request, name: str) -> str:
    """A cookie's name: behind TLS one that no other host can set."""
    return f"__Host-{name}" if server_of(request).settings.address.startswith("https:") else name


def who(request: Request) -> SignedIn | None:
    """Who is signed in; a cookie counts for pages alone, and never for the API."""
    with server_of(request).database.reading() as connection:
        return signed_in(connection, request.cookies.get(cookie_name(request, SESSION), ""), time.time())


def has_private_run(request: Request, owner: str, name: str, version: str) -> bool:
    """Whether there is such a run, private, of whoever is signed in."""
    found = who(request)
    if found is None:
        return False
    query = select(releases.c.id).where(releases.c.kind == "run", releases.c.owner == owner, releases.c.name == name)
    query = query.where(releases.c.version == version, releases.c.visibility == "private", seen_by(found.viewer))
    with server_of(request).database.reading() as connection:
        return connection.execute(query).scalar() is not None
