"""Parts that all pages share: the boards, the caches, FastAPI dependencies, and pages for missing content.

`NewestSnapshot` and `Session` are parameter types: FastAPI passes the newest snapshot of the boards and the browser's
session to the function of a page that has such parameters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated

from fastapi import Depends, Request
from starlette.responses import RedirectResponse, Response

from runner.documents.releases.reference import Kind, Reference
from runner.pages.report.served import ServedPage, View
from runner.server.accounts.browser_sessions import BrowserSession
from runner.server.boards.snapshot import BoardSnapshot
from runner.server.boards.updates import BoardUpdater
from runner.server.web.browser_session import find_session
from runner.server.web.pages.run_cache import RunPageCache
from runner.server.web.responses import PRIVATE, PageCache, page_response
from runner.server.web.views import ReleaseLine

RETRY_SECONDS = 3
"""Delay before a client should retry while the first board of a server is built."""


@dataclass(frozen=True)
class ServerSite:
    """The boards and caches that the pages share."""

    boards: BoardUpdater
    run_pages: RunPageCache
    page_cache: PageCache = field(default_factory=PageCache)


class EarlyResponse(Exception):
    """Raised to answer a request with `response` instead of the requested page."""

    def __init__(self, response: Response) -> None:
        super().__init__()
        self.response = response


async def send_early_response(_: Request, error: Exception) -> Response:
    """Answer with the response of an `EarlyResponse`."""
    assert isinstance(error, EarlyResponse)
    return error.response


@dataclass(frozen=True, kw_only=True)
class ListingView(View):
    """A page with lines of text above tables of releases."""

    template = "listing"
    lead: Sequence[str]
    """Lines of text above the tables."""
    tables: Sequence[tuple[str, Sequence[ReleaseLine]]] = ()
    """The tables, each with its caption."""
    before: str | None = None
    after: str | None = None
    """The URLs of the previous and the next part of the list."""
    owner: str | None = None
    """The owner, if all releases have the same one."""
    links: Sequence[tuple[str, str]] = ()


def site_of(request: Request) -> ServerSite:
    """Return the boards and caches of the server that answers a request."""
    site: ServerSite = request.app.state.site
    return site


def missing_page(request: Request, message: str) -> Response:
    """Return a page with status 404. It is the same for a release that is hidden and for one that does not exist."""
    hint = "Check the address. New releases appear after a few seconds. To see your private releases, open /mine."
    page = ServedPage("Page not found", [("missing", ListingView(lead=(message, hint)).render())])
    return page_response(request, page, status=404, cache_control="no-store")


def waiting_page(request: Request, message: str, reload_seconds: int) -> Response:
    """Return a page that the browser reloads after this number of seconds."""
    section = ("making", ListingView(lead=(message,)).render())
    page = ServedPage("In a moment", [section], reload_seconds=reload_seconds)
    response = page_response(request, page, status=503, cache_control="no-store")
    response.headers["retry-after"] = str(reload_seconds)
    return response


def find_snapshot(request: Request) -> BoardSnapshot:
    """Return the newest snapshot; raise EarlyResponse with a page while the server builds its first one."""
    snapshot = site_of(request).boards.newest
    if snapshot is None:
        message = "The server is building its first boards. This page reloads by itself every few seconds."
        raise EarlyResponse(waiting_page(request, message, RETRY_SECONDS))
    return snapshot


def require_session(request: Request) -> BrowserSession:
    """Return the session of the browser; raise EarlyResponse, a redirect to the sign-in page, if there is none."""
    session = find_session(request)
    if session is None:
        raise EarlyResponse(RedirectResponse("/login", 303, {"cache-control": PRIVATE}))
    return session


def run_reference(owner: str, name: str, version: str) -> Reference:
    """Return the reference of the run in a path."""
    return Reference(Kind.RUN, owner, name, version)


NewestSnapshot = Annotated[BoardSnapshot, Depends(find_snapshot)]
Session = Annotated[BrowserSession, Depends(require_session)]
