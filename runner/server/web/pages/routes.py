"""Everything that a browser is shown."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from runner.server.web.pages import account, boards, competitions, games, releases, runs, sign_in
from runner.server.web.pages.site import ServerSite


def add_pages(app: FastAPI, site: ServerSite) -> None:
    """Have an application answer with pages, once `site.boards` is started."""
    app.state.site = site
    pages_of = (
        boards.pages,
        competitions.pages,
        games.pages,
        sign_in.pages,
        account.pages,
        runs.pages,
        releases.pages,
    )
    for router in pages_of:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
                route.methods.add("HEAD")
    for router in (boards.data, *pages_of):
        app.include_router(router)
