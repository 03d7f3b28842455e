"""The application: the routes of a server, and what goes on beside them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from runner.server.accounts import Viewer, viewer_of_account
from runner.server.service import Server
from runner.server.web import api_competitions, api_releases, api_uploads
from runner.server.web.faults import handle_faults
from runner.server.web.headers import Headers
from runner.version import __version__

FORGET_SECONDS = 600.0


def application(server: Server) -> FastAPI:
    """The routes of a server, for whatever runs ASGI."""

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        server.publishing.resume(list(await asyncio.to_thread(_waiting, server)))
        forgetting = asyncio.create_task(_forget_old(server))
        yield
        forgetting.cancel()
        server.publishing.close()

    app = FastAPI(
        title="nip-run registry",
        version=__version__,
        summary="Releases of runs and components: found, read, published.",
        lifespan=living,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.server = server
    app.include_router(api_releases.router)
    app.include_router(api_uploads.router)
    app.include_router(api_competitions.router)
    handle_faults(app)
    app.add_middleware(Headers)
    return app


def _waiting(server: Server) -> list[tuple[str, Viewer]]:
    with server.database.reading() as connection:
        waiting = server.publishing.uploads.unchecked()
        return [(upload, viewer_of_account(connection, account)) for upload, account in waiting]


async def _forget_old(server: Server) -> None:
    while True:
        await asyncio.to_thread(server.publishing.uploads.forget_old, time.time())
        await asyncio.sleep(FORGET_SECONDS)
