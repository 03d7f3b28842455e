"""The web application of a server: its routes, its middleware, and the background work that starts with it."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from runner.server.accounts.accounts import viewer_of_token
from runner.server.boards.updates import BoardUpdater
from runner.server.service import Service
from runner.server.web import health
from runner.server.web.allowed_hosts import HostCheck
from runner.server.web.api import accounts, admin, competitions, releases, uploads
from runner.server.web.api.schemas import COMMON_ERRORS
from runner.server.web.api_errors import add_error_handlers
from runner.server.web.error_pages import ErrorPage
from runner.server.web.headers import DefaultHeaders
from runner.server.web.health import Readiness
from runner.server.web.observability import RequestLog, RequestMetrics
from runner.server.web.openapi import add_openapi_document
from runner.server.web.pages.routes import add_pages
from runner.server.web.pages.run_cache import RunPageCache
from runner.server.web.pages.site import ServerSite
from runner.server.web.rate_limits import OpenRequestLimit, RateLimit
from runner.server.web.request_bodies import BodyLimit
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")
CLEANUP_SECONDS = 600.0
"""Time between two cleanups."""


def create_app(server: Service) -> FastAPI:
    """Build the application of a server."""
    site = ServerSite(BoardUpdater(server.settings, server.database), RunPageCache(server.settings))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await asyncio.to_thread(server.publishing.start)
        cleanup = asyncio.create_task(_clean_up(server))
        site.boards.start()
        yield
        site.boards.close()
        cleanup.cancel()
        server.publishing.close()

    app = FastAPI(
        title="nip-run registry",
        version=__version__,
        summary="Find, download and publish releases of runs and components.",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        responses=COMMON_ERRORS,
        redirect_slashes=False,  # a redirect would contain the request's Host, and make clients send bodies again
    )
    app.state.server = server
    app.state.request_metrics = RequestMetrics()
    app.state.readiness = Readiness(server)
    app.include_router(releases.router)
    app.include_router(uploads.router)
    app.include_router(accounts.router)
    app.include_router(admin.router)
    app.include_router(health.router)
    app.include_router(competitions.router)
    add_pages(app, site)
    add_openapi_document(app)
    add_error_handlers(app)
    _add_middleware(app, server)
    return app


def _add_middleware(app: FastAPI, server: Service) -> None:
    """Add the middleware. A request passes through it in the reverse order of these calls."""

    def is_valid(token: str) -> bool:
        with server.database.reading() as connection:
            return viewer_of_token(connection, token, time.time()) is not None

    settings = server.settings
    proxies, max_requests, max_per_address = settings.proxies, settings.connections, settings.connections_per_address
    app.add_middleware(BodyLimit, max_declaration_bytes=settings.declared_bytes, max_seconds=settings.body_seconds)
    app.add_middleware(RateLimit, rate=settings.rate, proxies=proxies, is_valid=is_valid)
    if not settings.any_host:
        app.add_middleware(HostCheck, address=settings.address)
    app.add_middleware(OpenRequestLimit, max_requests=max_requests, max_per_address=max_per_address, proxies=proxies)
    app.add_middleware(ErrorPage)
    app.add_middleware(DefaultHeaders)
    app.add_middleware(RequestLog, metrics=app.state.request_metrics, trusted_proxies=proxies)


async def _clean_up(server: Service) -> None:
    """Delete expired uploads until the server stops."""
    while True:
        try:
            await asyncio.to_thread(server.publishing.uploads.delete_expired)
        except Exception:  # the next cleanup may succeed
            LOG.exception("old uploads could not be deleted")
        await asyncio.sleep(CLEANUP_SECONDS)
