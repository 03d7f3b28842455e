"""Every page of a site: its links are followed, one of each kind."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

WAITING = "() => document.querySelector('section.page:not([hidden])')?.textContent.trim().length > 0"
NOWHERE = re.compile(r"There is no (page|run|game|tree|board)\b")


def kind(route: str) -> str:
    """The shape of an address: what it names taken out."""
    parts = route.partition("?")[0].split("/")
    return "/".join(part if at % 2 == 0 else "*" for at, part in enumerate(parts))


def links(page: Any) -> list[str]:
    found: list[str] = page.evaluate(
        "[...document.querySelectorAll('section.page:not([hidden]) a[href^=\"#/\"], nav.pages a')]"
        ".map((one) => one.getAttribute('href').slice(2))"
    )
    return found


def visited(watched: Any, address: Any, most: int = 3) -> dict[str, str]:
    """The text of each page that links lead to, `most` of each kind, by its address."""
    page = watched.open(address)
    page.wait_for_function(WAITING)
    seen: dict[str, str] = {}
    open_ = links(page)
    counts: dict[str, int] = {}
    while open_:
        route = open_.pop(0)
        shape = kind(unquote(route))
        if route in seen or counts.get(shape, 0) >= most:
            continue
        counts[shape] = counts.get(shape, 0) + 1
        watched.navigate(route)
        page.wait_for_function(WAITING)
        page.wait_for_load_state("networkidle")
        page.wait_for_timeout(60)
        seen[route] = page.locator("section.page:not([hidden])").first.inner_text()
        open_ += links(page)
    return seen
