"""The routes of all pages."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.routing import APIRoute

from runner.server.web.pages import account, boards, competitions, games, releases, runs, sign_in
from runner.server.web.pages.site import EarlyResponse, ServerSite, send_early_response


def add_pages(app: FastAPI, site: ServerSite) -> None:
    """Add the pages to an application. Call `site.boards.start` before the first request."""
    app.state.site = site
    app.add_exception_handler(EarlyResponse, send_early_response)
    app.include_router(boards.data)  # before `/board/{page}`, which also matches names of files
    for module in (boards, competitions, games, sign_in, account, runs, releases):
        for route in module.pages.routes:
            if isinstance(route, APIRoute) and route.methods and "GET" in route.methods:
                route.methods.add("HEAD")
        app.include_router(module.pages)
