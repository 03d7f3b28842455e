"""Health checks and metrics of a server, for load balancers and monitoring: `/healthz`, `/readyz` and `/metrics`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Depends, HTTPException, Request
from starlette.responses import PlainTextResponse

from runner.base.errors import NipRunError
from runner.server.accounts.accounts import Scope, Viewer
from runner.server.service import Service
from runner.server.web.api.schemas import errors
from runner.server.web.authentication import authenticate, server_of
from runner.server.web.callers import is_loopback
from runner.server.web.observability import RequestMetrics

router = APIRouter(tags=["state"])
_NO_BLOB = "0" * 64
"""Hash of a blob that does not exist. The probe only tests whether the blob store answers."""
MAX_PROBE_AGE_SECONDS = 1.0
"""Maximum age of a cached result of a probe."""
MAX_PROBE_SECONDS = 5.0
"""Time limit for a probe."""


class Readiness:
    """Tests (probes) whether the database and the blob store answer, and caches the result for a moment."""

    def __init__(self, server: Service, clock: Callable[[], float] = time.monotonic) -> None:
        self._server, self._clock = server, clock
        self._probe: asyncio.Future[list[str]] | None = None
        self._probe_start_time = 0.0

    async def problems(self) -> list[str]:
        """Return a message for each part of the server that does not answer in time."""
        is_outdated = self._clock() > self._probe_start_time + MAX_PROBE_AGE_SECONDS
        if self._probe is None or (self._probe.done() and is_outdated):
            self._probe_start_time = self._clock()
            self._probe = asyncio.get_running_loop().run_in_executor(None, self._run_probe)
        done, _ = await asyncio.wait([self._probe], timeout=MAX_PROBE_SECONDS)
        return (
            self._probe.result() if done else [f"database and blob store do not answer within {MAX_PROBE_SECONDS:g} s"]
        )

    def _run_probe(self) -> list[str]:
        problems = [] if self._server.database.is_reachable() else ["the database does not answer; check --database"]
        try:
            self._server.blobs.has(_NO_BLOB)
        except NipRunError:
            problems.append("the blob store does not answer; check --blobs")
        return problems


@router.get("/healthz", response_class=PlainTextResponse)
async def healthz() -> str:
    """Answer that the server is alive, even if all threads are busy."""
    return "ok\n"


@router.get(
    "/readyz",
    response_class=PlainTextResponse,
    responses={
        503: {"content": {"text/plain": {"schema": {"type": "string"}}}, "description": "The parts that do not answer."}
    },
)
async def readyz(request: Request) -> PlainTextResponse:
    """Answer whether the database and the blob store work."""
    readiness: Readiness = request.app.state.readiness
    problems = await readiness.problems()
    return PlainTextResponse("\n".join(problems or ["ok"]) + "\n", 503 if problems else 200)


def require_metrics_access(request: Request, viewer: Annotated[Viewer, Depends(authenticate)]) -> None:
    """Refuse a request that neither has an admin token nor comes from this machine.

    Behind a proxy, all requests need an admin token, because the proxy may run on this machine.
    """
    if viewer.scope.allows(Scope.ADMIN):
        return
    peer = request.client.host if request.client else ""
    if server_of(request).settings.proxies or not is_loopback(peer) or "x-forwarded-for" in request.headers:
        raise HTTPException(403, "/metrics needs a token: `nip-run server add-token DIR ACCOUNT --scope admin`")


@router.get(
    "/metrics", response_class=PlainTextResponse, dependencies=[Depends(require_metrics_access)], responses=errors(403)
)
def metrics(request: Request) -> str:
    """Get metrics of the requests since the server started, for Prometheus."""
    request_metrics: RequestMetrics = request.app.state.request_metrics
    server = server_of(request)
    with server.database.reading() as connection:
        revision = server.database.revision(connection)
    lines = [*request_metrics.lines(), "# TYPE nip_run_revision counter", f"nip_run_revision {revision}"]
    return "\n".join(lines) + "\n"
