"""Everything that a browser is shown."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from runner.server.web import (
    pages_account,
    pages_boards,
    pages_competitions,
    pages_games,
    pages_mine,
    pages_releases,
    pages_runs,
)
from runner.server.web.site import Site


def add_pages(app: FastAPI, site: Site) -> None:
    """Have an application answer with pages, once `site.boards` is started."""
    app.state.site = site
    pages_of = (
        pages_boards.pages,
        pages_competitions.pages,
        pages_games.pages,
        pages_mine.pages,
        pages_account.pages,
        pages_runs.pages,
        pages_releases.pages,
    )
    for router in pages_of:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
                route.methods.add("HEAD")
    for router in (pages_boards.data, *pages_of):
        app.include_router(router)
