"""The web application of a server: its routes, its middleware, and the background work that starts with it."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import urlsplit

from fastapi import FastAPI
from fastapi.dependencies.models import Dependant
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute, iter_route_contexts
from pydantic import BaseModel
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from runner.server.accounts.accounts import viewer_of_token
from runner.server.boards.updates import BoardUpdater
from runner.server.service import Service
from runner.server.web import health
from runner.server.web.api import accounts, admin, competitions, releases, uploads
from runner.server.web.api.schemas import COMMON_ERRORS
from runner.server.web.api_errors import add_error_handlers, error_response
from runner.server.web.authentication import bearer
from runner.server.web.callers import parse_address
from runner.server.web.error_pages import ErrorPage
from runner.server.web.health import Readiness
from runner.server.web.observability import RequestLog, RequestMetrics
from runner.server.web.pages.routes import add_pages
from runner.server.web.pages.run_cache import RunPageCache
from runner.server.web.pages.site import ServerSite
from runner.server.web.rate_limits import UNLIMITED_PATHS, OpenRequestLimit, RateLimit
from runner.server.web.request_bodies import MODEL_ATTRIBUTE, BodyLimit
from runner.version import __version__

LOG = logging.getLogger("nip_run.server")
CLEANUP_SECONDS = 600.0
"""Time between two cleanups."""


DEFAULTS = {
    "content-security-policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
}
"""Headers of responses that do not set them. Pages set a content security policy; cacheable responses set
`cache-control`."""


class DefaultHeaders:
    """Middleware that adds the default headers that a response does not set."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_defaults(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in DEFAULTS.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, send_with_defaults)


_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:]*)(?::[0-9]*)?")


class HostCheck:
    """Middleware that answers 421 if the header `Host` of a request names another host than the server's.

    It prevents DNS rebinding: in such an attack, a hostile website makes its own host name resolve to this server, so
    that its scripts can read from the server. IP addresses are always allowed, because the attack needs a host name.
    """

    def __init__(self, app: ASGIApp, address: str) -> None:
        self._app, self._address = app, address
        self._allowed_names = {"localhost", (urlsplit(address).hostname or "").lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_checked = scope["type"] == "http" and scope["path"] not in UNLIMITED_PATHS
        if is_checked and not all(self._is_allowed(host) for host in Headers(scope=scope).getlist("host")):
            message = f"unknown host in `Host`; use {self._address}, or start `nip-run serve` with --address URL"
            await error_response(421, "host", message)(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, header: str) -> bool:
        match = _HOST.fullmatch(header.strip())
        if match is None:
            return False
        host = match[1].lower().rstrip(".")
        return host in self._allowed_names or parse_address(host.strip("[]")) is not None


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

    def find_account(token: str) -> str | None:
        with server.database.reading() as connection:
            viewer = viewer_of_token(connection, token, time.time())
        return None if viewer is None else viewer.account

    settings = server.settings
    proxies, max_requests, max_per_address = settings.proxies, settings.connections, settings.connections_per_address
    app.add_middleware(BodyLimit, max_declaration_bytes=settings.declared_bytes, max_seconds=settings.body_seconds)
    app.add_middleware(RateLimit, rate=settings.rate, proxies=proxies, find_account=find_account)
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


_ACCEPTS_TOKEN = ("/api/v1", "/metrics")


def add_openapi_document(app: FastAPI) -> None:
    """Make an application build its OpenAPI document with `_build_document`, on the first request for it."""

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            app.openapi_schema = _build_document(app)
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign] # as the library documents it


def _build_document(app: FastAPI) -> dict[str, object]:
    document = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
    for path, operations in document["paths"].items():
        for operation in operations.values():
            if path.startswith(_ACCEPTS_TOKEN):  # operations that require a token have declared it
                operation.setdefault("security", [{}, {bearer.scheme_name: []}])
    for context in iter_route_contexts(app.routes):
        route = context.original_route
        if isinstance(route, APIRoute) and (model := _body_of(route.dependant)) is not None:
            for method in route.methods or ():
                _describe_body(document, document["paths"][str(context.path_format)][method.lower()], model)
    return document


def _body_of(dependant: Dependant) -> type[BaseModel] | None:
    """Return the model of the body that an operation reads with `json_body`."""
    models = (getattr(dependency.call, MODEL_ATTRIBUTE, None) for dependency in dependant.dependencies)
    return next((model for model in models if model is not None), None)


def _describe_body(document: dict[str, Any], operation: dict[str, Any], model: type[BaseModel]) -> None:
    schema = model.model_json_schema(ref_template="#/components/schemas/{model}")
    schemas = document.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(schema.pop("$defs", {}))
    schemas[model.__name__] = schema
    content = {"schema": {"$ref": f"#/components/schemas/{model.__name__}"}}
    operation["requestBody"] = {"content": {"application/json": content}, "required": True}
