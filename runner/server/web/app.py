"""The application: the routes of a server, and what goes on beside them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from runner.server.accounts.accounts import viewer_of
from runner.server.service import Service
from runner.server.web import health
from runner.server.web.allowed_hosts import Hosts
from runner.server.web.api import accounts, admin, competitions, releases, uploads
from runner.server.web.api.schemas import ALWAYS
from runner.server.web.api_errors import handle_faults
from runner.server.web.error_pages import ErrorPage
from runner.server.web.headers import Headers
from runner.server.web.health import Readiness
from runner.server.web.observability import Numbers, Seeing
from runner.server.web.openapi import describe
from runner.server.web.pages.routes import add_pages
from runner.server.web.pages.site import ServerSite
from runner.server.web.rate_limits import AtOnce, Limiting
from runner.server.web.request_bodies import Bodies
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")
FORGET_SECONDS = 600.0


def application(server: Service) -> FastAPI:
    """The routes of a server, for whatever runs ASGI."""
    site = ServerSite.of(server.settings, server.database)

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
        redirect_slashes=False,  # it would name whatever host was asked, and have what was sent be sent again
    )
    app.state.server = server
    app.state.numbers = Numbers()
    app.state.readiness = Readiness(server)
    app.include_router(releases.router)
    app.include_router(uploads.router)
    app.include_router(accounts.router)
    app.include_router(admin.router)
    app.include_router(health.router)
    app.include_router(competitions.router)
    add_pages(app, site)
    describe(app)
    handle_faults(app)
    _watch(app, server)
    return app


def _watch(app: FastAPI, server: Service) -> None:
    """What stands before the routes; the last is the outermost."""

    def is_good(token: str) -> bool:
        with server.database.reading() as connection:
            return viewer_of(connection, token, time.time()) is not None

    settings = server.settings
    proxies, most, most_of_one = settings.proxies, settings.connections, settings.connections_of_one
    app.add_middleware(Bodies, declared=settings.declared_bytes, seconds=settings.body_seconds)
    app.add_middleware(Limiting, rate=settings.rate, proxies=proxies, is_good=is_good)
    if not settings.any_name:
        app.add_middleware(Hosts, address=settings.address)
    app.add_middleware(AtOnce, most=most, most_of_one=most_of_one, proxies=proxies)
    app.add_middleware(ErrorPage)
    app.add_middleware(Headers)
    app.add_middleware(Seeing, numbers=app.state.numbers, proxies=proxies)


async def _forget_old(server: Service) -> None:
    while True:
        try:
            await asyncio.to_thread(server.publishing.uploads.forget_old, time.time())
            await asyncio.to_thread(server.publishing.look_again)
        except Exception:  # the next turn may do better
            LOG.exception("what is old cannot be forgotten")
        await asyncio.sleep(FORGET_SECONDS)
