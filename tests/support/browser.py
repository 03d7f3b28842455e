"""Chromium, driven by Playwright. Each page records the errors that occur in it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support.threaded_server import serve_in_thread

HARMLESS_MESSAGES = ("log", "info", "debug")
"""Types of console messages that are not errors."""

SECONDS = 10
"""Time limit of each wait for the page."""


@contextmanager
def chromium() -> Iterator[Any]:
    """Run Chromium.

    Raises:
        FileNotFoundError: Chromium is not installed.
    """
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("no chromium on the path: apt-get install chromium")
    arguments = ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium's sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments)
        try:
            yield browser
        finally:
            browser.close()


class WatchedPage:
    """A page in its own browser context, with the problems that occurred in it."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(SECONDS * 1000)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._on_console)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._on_dialog)
        self.page.on("requestfailed", lambda request: self.problems.append(f"failed: {request.url}"))
        self.context.on("request", self._on_request)
        self._own_origin = ""

    def open(self, address: str | Path, route: str = "", *, own: str | None = None) -> Any:
        """Open an address, optionally at a route of the page.

        A request to a URL that does not start with `own` is a problem.
        """
        url = address.as_uri() if isinstance(address, Path) else address
        page_url = url.partition("#")[0]
        self._own_origin = own or (page_url.rpartition("/")[0] + "/" if url.startswith("http") else page_url)
        self.page.goto(f"{url}#/{route}" if route else url)
        return self.page

    def navigate(self, route: str) -> None:
        """Go to another route of the page."""
        self.page.evaluate("route => { location.hash = `#/${route}`; }", route)

    def close(self) -> list[str]:
        """Close the page and return its problems."""
        self.context.close()
        return self.problems

    def _on_console(self, message: Any) -> None:
        if message.type not in HARMLESS_MESSAGES:
            self.problems.append(f"console {message.type}: {message.text}")

    def _on_dialog(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _on_request(self, request: Any) -> None:
        self.requests.append(request.url)
        is_own = request.url.startswith("data:") or request.url.partition("#")[0].startswith(
            self._own_origin or "about:"
        )
        if not is_own:
            self.problems.append(f"request: {request.url}")


class _FileHandler(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name in http.server
        """Log nothing."""

    def send_head(self) -> Any:
        # A browser requests the icon of every site, even if the page does not mention one.
        if urlsplit(self.path).path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
            return None
        return super().send_head()


@contextmanager
def serve_folder(folder: Path) -> Iterator[str]:
    """Serve the files of a folder over HTTP; yield the address of its index."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_FileHandler, directory=str(folder)))
    with serve_in_thread(server):
        yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
