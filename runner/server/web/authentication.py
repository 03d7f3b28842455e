"""Authentication of API requests: finds the account and the permissions (`Viewer`) of a request's token.

The last lines define parameter types, such as `PublishingViewer`. If an operation has a parameter of such a type,
FastAPI passes the viewer of the request to it, and refuses requests whose token lacks the permission.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

from fastapi import Depends, HTTPException, Request, Security
from fastapi.security import HTTPBearer

from runner.server.accounts.accounts import ANYBODY, Scope, Viewer, viewer_of_token
from runner.server.service import Service

bearer = HTTPBearer(
    scheme_name="token",
    description="The administrator creates a token with `nip-run server add-token`. Its holder can create more with "
    "`POST /api/v1/tokens`.",
    auto_error=False,
)
"""The security scheme for the OpenAPI document; `authenticate` reads the header."""
_DocumentedToken = Annotated[object, Security(bearer)]


def server_of(request: Request) -> Service:
    """Return the server that answers a request."""
    service: Service = request.app.state.server
    return service


def authenticate(request: Request) -> Viewer:
    """Return the viewer of a request: `ANYBODY` without a token. An invalid token is an error."""
    header = request.headers.get("authorization")
    if header is None:
        return ANYBODY
    scheme, _, token = header.partition(" ")
    with server_of(request).database.reading() as connection:
        viewer = viewer_of_token(connection, token.strip(), time.time()) if scheme.lower() == "bearer" else None
    if viewer is None:
        raise HTTPException(
            401, "the token is unknown, expired or revoked; ask the server's administrator for a new one"
        )
    request.state.account = viewer.account  # for the log
    return viewer


def require_token(scope: Scope) -> Callable[..., Viewer]:
    """Return a FastAPI dependency that refuses requests without a token of at least this scope."""

    def viewer_with_token(viewer: Annotated[Viewer, Depends(authenticate)], _: _DocumentedToken) -> Viewer:
        if viewer.account_id is None:
            message = f"this request needs a token with scope {scope} in the header `Authorization: Bearer TOKEN`"
            advice = "ask the server's administrator for one (`nip-run server add-token`)"
            raise HTTPException(401, f"{message}; {advice}")
        if not viewer.scope.allows(scope):
            message = (
                f"the token's scope is {viewer.scope}; ask the server's administrator for a token with scope {scope}"
            )
            raise HTTPException(403, message)
        return viewer

    return viewer_with_token


require_account = require_token(Scope.READ)
require_publisher = require_token(Scope.PUBLISH)
require_admin = require_token(Scope.ADMIN)

AnyViewer = Annotated[Viewer, Depends(authenticate)]
AccountViewer = Annotated[Viewer, Depends(require_account)]
PublishingViewer = Annotated[Viewer, Depends(require_publisher)]
AdminViewer = Annotated[Viewer, Depends(require_admin)]
