"""The API for administrators: hide a release, and show it again."""

from __future__ import annotations

import time
from typing import Annotated

from fastapi import APIRouter, Path, Request
from pydantic import Field

from runner.base.errors import NotFoundError
from runner.documents.releases.reference import Reference
from runner.server.accounts.accounts import Viewer
from runner.server.accounts.administration import log_action, set_hidden
from runner.server.web.api.schemas import TEXT_PATTERN, RequestBody, errors
from runner.server.web.authentication import AdminViewer, require_admin, server_of
from runner.server.web.request_bodies import json_body

router = APIRouter(prefix="/api/v1/hidden", tags=["admin"])

ReleasePath = Annotated[str, Path(max_length=400, description="KIND/OWNER/NAME/VERSION")]


class HideReleaseRequest(RequestBody):
    why: Annotated[str, Field(min_length=1, max_length=2_000, pattern=TEXT_PATTERN)]
    """The reason, recorded in the server's log of actions."""


@router.put("/{release:path}", status_code=204, responses=errors(403, 404))
def hide(
    request: Request,
    viewer: AdminViewer,
    release: ReleasePath,
    body: Annotated[HideReleaseRequest, json_body(HideReleaseRequest, require_admin)],
) -> None:
    """Hide a public release from everyone but its owner. Its name and version stay reserved."""
    _set_hidden(request, viewer, release, hidden=True, reason=body.why)


@router.delete("/{release:path}", status_code=204, responses=errors(403, 404))
def show(request: Request, viewer: AdminViewer, release: ReleasePath) -> None:
    """Make a hidden release public again."""
    _set_hidden(request, viewer, release, hidden=False)


def _set_hidden(request: Request, viewer: Viewer, folder: str, *, hidden: bool, reason: str = "") -> None:
    server, reference = server_of(request), Reference.of_folder(folder)
    if reference is None:
        raise NotFoundError("the path does not name a release; write /api/v1/hidden/KIND/OWNER/NAME/VERSION")
    with server.database.writing() as connection:
        set_hidden(connection, reference, hidden=hidden)
        action = "hide" if hidden else "show"
        log_action(connection, time.time(), action, str(reference), by=viewer.account, reason=reason)
        server.database.increment_revision(connection)
