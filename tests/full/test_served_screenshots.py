"""A picture of every page that a server sends, at three widths, light and dark: none scrolls sideways or has an error.

The server's content is that of `tests.support.served_world`, published by the command line. Pictures are
`pictures/PAGE-WIDTH-SCHEME.png`, `pictures/PAGE-plain.png` without a script, and `pictures/PAGE.pdf` in the folder of
the test.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.full.test_pages_screenshots import PATIENCE, SCHEMES, SIDEWAYS, WIDTHS
from tests.support.browser import Watched, chromium
from tests.support.claims import Claims
from tests.support.served_world import ABSENT, PRIVATE, World, empty, world

NOT_THERE = "the server responded with a status of 404"
"""What Chromium says of a page that tells that there is none."""


@dataclass(frozen=True)
class Look:
    """A page by its name: of which server, at which address, and who is signed in."""

    name: str
    server: str
    path: str
    cookies: Sequence[dict[str, str]] = ()


def test_no_served_page_scrolls_sideways_or_has_an_error(tmp_path: Path, claims: Claims) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    with chromium() as browser, world(tmp_path) as made, empty(tmp_path) as bare:
        empty_pages = (Look("empty", bare.address, "/"), Look("empty-search", bare.address, "/search?q=x"))
        for look in (*_looks(made), *empty_pages):
            _looked_at(claims, browser, look, pictures)


def _looks(made: World) -> Iterator[Look]:
    for name, path in {**made.pages, **ABSENT}.items():
        yield Look(name, made.served.address, path)
    bob = made.signed_in("bob")
    for name, path in PRIVATE.items():
        yield Look(name, made.served.address, path, bob)


def _looked_at(claims: Claims, browser: Any, look: Look, into: Path) -> None:
    problems: list[str] = []
    wide = {}
    for scheme in SCHEMES:
        for width in WIDTHS:
            options = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
            with _opened(browser, look, problems, **options) as page:
                wide[width, scheme] = page.evaluate(SIDEWAYS)
                page.screenshot(path=into / f"{look.name}-{width}-{scheme}.png", full_page=True, timeout=PATIENCE)
    with _opened(browser, look, problems) as page:
        page.pdf(path=into / f"{look.name}.pdf", format="A4", prefer_css_page_size=True)
    with _opened(browser, look, problems, java_script_enabled=False) as page:
        page.screenshot(path=into / f"{look.name}-plain.png", full_page=True, timeout=PATIENCE)
    claims(not any(wide.values()), f"{look.name}: pixels beyond the sides, by width: {wide}")
    claims(not problems, f"{look.name}: errors: {problems}")


@contextmanager
def _opened(browser: Any, look: Look, problems: list[str], **options: Any) -> Iterator[Any]:
    watched = Watched(browser, **options)
    watched.context.set_default_timeout(PATIENCE)
    watched.context.add_cookies(list(look.cookies))
    page = watched.open(f"{look.server}{look.path}", own=f"{look.server}/")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(250)
    yield page
    problems += [one for one in watched.close() if not (look.name in ABSENT and NOT_THERE in one)]
