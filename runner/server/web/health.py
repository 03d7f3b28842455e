"""How the server is: whether it lives, whether it can work, and its numbers."""

from __future__ import annotations

import asyncio
import ipaddress
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.responses import PlainTextResponse

from runner.base.errors import NipRunError
from runner.server.accounts.accounts import Scope, Viewer
from runner.server.service import Service
from runner.server.web.api.schemas import faults
from runner.server.web.authentication import asking, server_of
from runner.server.web.observability import Numbers

router = APIRouter(tags=["state"])
_NO_BLOB = "0" * 64
FRESH_SECONDS = 1.0
"""For which what was seen is told again."""
READY_SECONDS = 5.0


class Readiness:
    """What of a server does not answer, as it was seen a moment ago: there is one look at a time, whoever asks."""

    def __init__(self, server: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self._look: asyncio.Future[list[str]] | None = None
        self._begun = 0.0

    async def wrong(self) -> list[str]:
        """What does not answer, or not in time."""
        if self._look is None or (self._look.done() and self._clock() > self._begun + FRESH_SECONDS):
            self._begun = self._clock()
            self._look = asyncio.get_running_loop().run_in_executor(None, self._looked)
        done, _ = await asyncio.wait([self._look], timeout=READY_SECONDS)
        return self._look.result() if done else [f"nothing answers within {READY_SECONDS:g} seconds"]

    def _looked(self) -> list[str]:
        wrong = [] if self._server.database.answers() else ["the database does not answer"]
        try:
            self._server.blobs.has(_NO_BLOB)
        except NipRunError:
            wrong.append("the blobs do not answer")
        return wrong


@router.get("/healthz", response_class=PlainTextResponse)
async def lives() -> str:
    """It answers, also where all threads have something to do."""
    return "ok\n"


@router.get(
    "/readyz",
    response_class=PlainTextResponse,
    responses={
        503: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "What does not answer."}
    },
)
async def ready(request: Request) -> PlainTextResponse:
    """Whether its database and its blobs answer."""
    readiness: Readiness = request.app.state.readiness
    wrong = await readiness.wrong()
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
