"""The application: the routes of a server, and what goes on beside them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from runner.server.service import Server
from runner.server.web import api_admin, api_competitions, api_people, api_releases, api_uploads, state
from runner.server.web.bodies import Bodies
from runner.server.web.document import describe
from runner.server.web.faults import handle_faults
from runner.server.web.headers import Headers
from runner.server.web.limiting import Limiting
from runner.server.web.pages import add_pages
from runner.server.web.seeing import Numbers, Seeing
from runner.server.web.shapes import ALWAYS
from runner.server.web.site import Site
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")
FORGET_SECONDS = 600.0


def application(server: Server) -> FastAPI:
    """The routes of a server, for whatever runs ASGI."""
    site = Site.of(server.settings, server.database)

    @asynccontextmanager
    async def living(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(server.publishing.start)
        forgetting = asyncio.create_task(_forget_old(server))
        site.boards.start()
        yield
        site.boards.close()
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
        responses=ALWAYS,
    )
    app.state.server = server
    app.state.numbers = Numbers()
    app.include_router(api_releases.router)
    app.include_router(api_uploads.router)
    app.include_router(api_people.router)
    app.include_router(api_admin.router)
    app.include_router(state.router)
    app.include_router(api_competitions.router)
    add_pages(app, site)
    describe(app)
    handle_faults(app)
    # The last is the outermost.
    proxies = server.settings.proxies
    app.add_middleware(Bodies, most=server.settings.declared_bytes, seconds=server.settings.body_seconds)
    app.add_middleware(Limiting, rate=server.settings.rate, proxies=proxies)
    app.add_middleware(Headers)
    app.add_middleware(Seeing, numbers=app.state.numbers, proxies=proxies)
    return app


async def _forget_old(server: Server) -> None:
    while True:
        try:
            await asyncio.to_thread(server.publishing.uploads.forget_old, time.time())
            await asyncio.to_thread(server.publishing.look_again)
        except Exception:  # the next turn may do better
            LOG.exception("what is old cannot be forgotten")
        await asyncio.sleep(FORGET_SECONDS)
