"""Visit the pages of a site by following its links."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

PAGE_HAS_TEXT = "() => document.querySelector('section.page:not([hidden])')?.textContent.trim().length > 0"
NOT_FOUND = re.compile(r"There is no (page|run|game|tree|board)\b")


def route_shape(route: str) -> str:
    """Return the route with every name replaced by `*`."""
    parts = route.partition("?")[0].split("/")
    return "/".join(part if index % 2 == 0 else "*" for index, part in enumerate(parts))


def list_links(page: Any) -> list[str]:
    routes: list[str] = page.evaluate(
        "[...document.querySelectorAll('section.page:not([hidden]) a[href^=\"#/\"], nav.pages a')]"
        ".map((one) => one.getAttribute('href').slice(2))"
    )
    return routes


def visit_pages(watched_page: Any, address: Any, max_per_shape: int = 3) -> dict[str, str]:
    """Follow links to at most `max_per_shape` pages of each shape, and return their texts by route."""
    page = watched_page.open(address)
    page.wait_for_function(PAGE_HAS_TEXT)
    texts: dict[str, str] = {}
    queue = list_links(page)
    counts: dict[str, int] = {}
    while queue:
        route = queue.pop(0)
        shape = route_shape(unquote(route))
        if route in texts or counts.get(shape, 0) >= max_per_shape:
            continue
        counts[shape] = counts.get(shape, 0) + 1
        watched_page.navigate(route)
        page.wait_for_function(PAGE_HAS_TEXT)
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(60)
        texts[route] = page.locator("section.page:not([hidden])").first.inner_text()
        queue += list_links(page)
    return texts
