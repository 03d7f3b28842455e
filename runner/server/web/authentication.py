"""Who asks: the token of a request into a viewer."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import Depends, HTTPException, Request, Security
from fastapi.security import HTTPBearer

from runner.server.accounts.accounts import ANYBODY, Scope, Viewer, viewer_of
from runner.server.service import Service

bearer = HTTPBearer(
    scheme_name="token",
    description="`nip-run server add-token` makes one, or who has one: `POST /api/v1/tokens`.",
    auto_error=False,
)
"""For the document alone: `asking` reads the header."""
_Wanted = Annotated[object, Security(bearer)]


def server_of(request: Request) -> Service:
    """The server that a request came to."""
    found: Service = request.app.state.server
    return found


def asking(request: Request) -> Viewer:
    """Who asks; anybody, where no token is given. One that is not good is refused, and not taken for none."""
    said = request.headers.get("authorization")
    if said is None:
        return ANYBODY
    scheme, _, token = said.partition(" ")
    with server_of(request).database.reading() as connection:
        viewer = viewer_of(connection, token.strip(), time.time()) if scheme.lower() == "bearer" else None
    if viewer is None:
        raise HTTPException(401, "this token is not known, has expired, or was revoked")
    request.state.account = viewer.account  # for the log
    return viewer


def known(viewer: Annotated[Viewer, Depends(asking)], _: _Wanted) -> Viewer:
    """Who asks, with any token."""
    if viewer.account_id is None:
        raise HTTPException(401, "a token is needed")
    return viewer


def publishing(viewer: Annotated[Viewer, Depends(asking)], _: _Wanted) -> Viewer:
    """Who asks, with a token that may publish."""
    if viewer.account_id is None:
        raise HTTPException(401, "a token is needed to publish")
    if not viewer.scope.allows(Scope.PUBLISH):
        raise HTTPException(403, "this token may read, and not publish")
    return viewer


def keeping(viewer: Annotated[Viewer, Depends(asking)], _: _Wanted) -> Viewer:
    """Who asks, with a token of who keeps the server."""
    if viewer.account_id is None:
        raise HTTPException(401, "a token is needed that may administer")
    if not viewer.scope.allows(Scope.ADMIN):
        raise HTTPException(403, "this token may not administer")
    return viewer


Asking = Annotated[Viewer, Depends(asking)]
Known = Annotated[Viewer, Depends(known)]
Publisher = Annotated[Viewer, Depends(publishing)]
Keeper = Annotated[Viewer, Depends(keeping)]
