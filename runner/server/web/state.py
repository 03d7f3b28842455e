"""How the server is: whether it lives, whether it can work, and its numbers."""

from __future__ import annotations

import ipaddress
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.responses import PlainTextResponse

from runner.errors import NipRunError
from runner.server.people.accounts import Scope, Viewer
from runner.server.web.asking import asking, server_of
from runner.server.web.seeing import Numbers
from runner.server.web.shapes import faults

router = APIRouter(tags=["state"])
_NO_BLOB = "0" * 64


@router.get("/healthz", response_class=PlainTextResponse)
def lives() -> str:
    """It answers."""
    return "ok\n"


@router.get(
    "/readyz",
    response_class=PlainTextResponse,
    responses={
        503: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "What does not answer."}
    },
)
def ready(request: Request) -> PlainTextResponse:
    """Whether its database and its blobs answer."""
    server = server_of(request)
    wrong = [] if server.database.answers() else ["the database does not answer"]
    try:
        server.blobs.has(_NO_BLOB)
    except NipRunError:
        wrong.append("the blobs do not answer")
    return PlainTextResponse("\n".join(wrong or ["ok"]) + "\n", 503 if wrong else 200)


def may_see_numbers(request: Request, viewer: Annotated[Viewer, Depends(asking)]) -> None:
    """Who keeps the server: this machine, where no proxy stands between, or a token of that scope."""
    if viewer.scope.allows(Scope.ADMIN):
        return
    peer = request.client.host if request.client else ""
    if server_of(request).settings.proxies or not _is_loopback(peer) or "x-forwarded-for" in request.headers:
        raise HTTPException(403, "a token that may administer is needed")


def _is_loopback(peer: str) -> bool:
    try:
        return ipaddress.ip_address(peer).is_loopback
    except ValueError:
        return False


@router.get(
    "/metrics", response_class=PlainTextResponse, dependencies=[Depends(may_see_numbers)], responses=faults(403)
)
def metrics(request: Request) -> str:
    """Numbers of requests since the server began, for Prometheus."""
    numbers: Numbers = request.app.state.numbers
    server = server_of(request)
    with server.database.reading() as connection:
        revision = server.database.revision(connection)
    lines = [*numbers.lines(), "# TYPE nip_run_revision counter", f"nip_run_revision {revision}"]
    return "\n".join(lines) + "\n"
