"""Screenshots of every page of a server, at three widths, light and dark: no page overflows or has an error.

The server is that of `tests.support.demo_server`. The test writes `pictures/PAGE-WIDTH-SCHEME.png`,
`pictures/PAGE-plain.png` without JavaScript, and `pictures/PAGE.pdf`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.full.test_pages_screenshots import HORIZONTAL_OVERFLOW, SCHEMES, SCREENSHOT_MILLISECONDS, WIDTHS
from tests.support.browser import WatchedPage, chromium
from tests.support.demo_server import ABSENT_PAGES, PRIVATE_PAGES, DemoServer, run_demo_server, run_empty_server
from tests.support.soft_assertions import SoftAssertions

STATUS_404 = "the server responded with a status of 404"
"""Error that Chromium logs for a page with the status 404."""


@dataclass(frozen=True)
class ServedPage:
    """A page of a server, with the cookies of the account that is signed in."""

    name: str
    server: str
    path: str
    cookies: Sequence[dict[str, str]] = ()


def test_no_server_page_overflows_or_has_an_error(tmp_path: Path, check: SoftAssertions) -> None:
    pictures = tmp_path / "pictures"
    pictures.mkdir()
    with chromium() as browser, run_demo_server(tmp_path) as demo, run_empty_server(tmp_path) as empty_server:
        empty_pages = (
            ServedPage("empty", empty_server.address, "/"),
            ServedPage("empty-search", empty_server.address, "/search?q=x"),
        )
        for page_to_show in (*_list_pages(demo), *empty_pages):
            _check_page(check, browser, page_to_show, pictures)


def _list_pages(demo: DemoServer) -> Iterator[ServedPage]:
    for name, path in {**demo.pages, **ABSENT_PAGES}.items():
        yield ServedPage(name, demo.served.address, path)
    bob = demo.sign_in_cookies("bob")
    for name, path in PRIVATE_PAGES.items():
        yield ServedPage(name, demo.served.address, path, bob)


def _check_page(check: SoftAssertions, browser: Any, page_to_show: ServedPage, folder: Path) -> None:
    problems: list[str] = []
    overflow = {}
    for scheme in SCHEMES:
        for width in WIDTHS:
            options = {"color_scheme": scheme, "viewport": {"width": width, "height": 900}}
            with _open_page(browser, page_to_show, problems, **options) as page:
                overflow[width, scheme] = page.evaluate(HORIZONTAL_OVERFLOW)
                page.screenshot(
                    path=folder / f"{page_to_show.name}-{width}-{scheme}.png",
                    full_page=True,
                    timeout=SCREENSHOT_MILLISECONDS,
                )
    with _open_page(browser, page_to_show, problems) as page:
        page.pdf(path=folder / f"{page_to_show.name}.pdf", format="A4", prefer_css_page_size=True)
    with _open_page(browser, page_to_show, problems, java_script_enabled=False) as page:
        page.screenshot(path=folder / f"{page_to_show.name}-plain.png", full_page=True, timeout=SCREENSHOT_MILLISECONDS)
    check(not any(overflow.values()), f"{page_to_show.name}: no horizontal overflow, in pixels by width: {overflow}")
    check(not problems, f"{page_to_show.name}: no errors: {problems}")


@contextmanager
def _open_page(browser: Any, page_to_show: ServedPage, problems: list[str], **options: Any) -> Iterator[Any]:
    watched_page = WatchedPage(browser, **options)
    watched_page.context.set_default_timeout(SCREENSHOT_MILLISECONDS)
    watched_page.context.add_cookies(list(page_to_show.cookies))
    page = watched_page.open(f"{page_to_show.server}{page_to_show.path}", own=f"{page_to_show.server}/")
    page.wait_for_load_state("networkidle")
    page.wait_for_timeout(250)
    yield page
    problems += [
        problem for problem in watched_page.close() if not (page_to_show.name in ABSENT_PAGES and STATUS_404 in problem)
    ]
