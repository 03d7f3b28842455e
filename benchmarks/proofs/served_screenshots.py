"""A picture of every page that a server sends, at three widths, light and dark: none scrolls sideways or has an error.

    python benchmarks/proofs/served_screenshots.py [--into DIR] [--only WORD]

The server's content is that of `tests.support.served_world`, published by the command line. Pictures are
DIR/PAGE-WIDTH-SCHEME.png, DIR/PAGE-plain.png without a script, and DIR/PAGE.pdf; by default they are thrown away.
`--only` looks at pages whose name has the word.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pages_screenshots import PATIENCE, SCHEMES, SIDEWAYS, WIDTHS
from shared import Claims, folder

from tests.support.browser import Watched, chromium
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, metavar="DIR")
    parser.add_argument("--only", default="", metavar="WORD")
    args = parser.parse_args()
    claims = Claims()
    with folder() as here, chromium() as browser, world(here) as made, empty(here) as bare:
        into = args.into or here / "pictures"
        into.mkdir(parents=True, exist_ok=True)
        for look in (
            *_looks(made),
            Look("empty", bare.address, "/"),
            Look("empty-search", bare.address, "/search?q=x"),
        ):
            if args.only in look.name:
                _looked_at(claims, browser, look, into)
    return claims.end()


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


if __name__ == "__main__":
    sys.exit(main())
