"""Who asks: the token of a request into a viewer."""

from __future__ import annotations

import time
from collections.abc import Callable
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


def require_token(scope: Scope, missing: str, refused: str) -> Callable[..., Viewer]:
    """Return a dependency that is the viewer whose token has at least this scope; the texts are its error messages."""

    def viewer_with_token(viewer: Annotated[Viewer, Depends(asking)], _: _Wanted) -> Viewer:
        if viewer.account_id is None:
            raise HTTPException(401, missing)
        if not viewer.scope.allows(scope):
            raise HTTPException(403, refused)
        return viewer

    return viewer_with_token


known = require_token(Scope.READ, "a token is needed", "")
publishing = require_token(Scope.PUBLISH, "a token is needed to publish", "this token may read, and not publish")
keeping = require_token(Scope.ADMIN, "a token is needed that may administer", "this token may not administer")

Asking = Annotated[Viewer, Depends(asking)]
Known = Annotated[Viewer, Depends(known)]
Publisher = Annotated[Viewer, Depends(publishing)]
Keeper = Annotated[Viewer, Depends(keeping)]
