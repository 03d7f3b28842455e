"""Chromium, driven by Playwright, and pages that are watched: what goes wrong in one is a problem of its test."""

from __future__ import annotations

import os
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

QUIET = ("log", "info", "debug")
"""Words on the console that are no fault; our pages say none of them either."""

SECONDS = 10
"""What a test waits for, on a machine with much else to do."""


@contextmanager
def chromium() -> Iterator[Any]:
    """A browser of this machine.

    Raises:
        FileNotFoundError: there is none.
    """
    from playwright.sync_api import sync_playwright

    path = shutil.which("chromium")
    if path is None:
        raise FileNotFoundError("no chromium on the path: apt-get install chromium")
    words = ["--no-sandbox"] if os.getuid() == 0 else []  # Chromium's sandbox refuses root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=words)
        try:
            yield browser
        finally:
            browser.close()


class Watched:
    """A page in a context of its own, and what went wrong in it."""

    def __init__(self, browser: Any, **options: Any) -> None:
        self.context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        self.context.set_default_timeout(SECONDS * 1000)
        self.page = self.context.new_page()
        self.problems: list[str] = []
        self.requests: list[str] = []
        self.page.on("console", self._said)
        self.page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        self.page.on("dialog", self._asked)
        self.page.on("requestfailed", lambda request: self.problems.append(f"failed: {request.url}"))
        self.context.on("request", self._requested)
        self._own = ""

    def open(self, address: str | Path, route: str = "", *, own: str | None = None) -> Any:
        """The page at an address, once it has drawn what `route` says; what does not begin with `own` is elsewhere."""
        url = address.as_uri() if isinstance(address, Path) else address
        bare = url.partition("#")[0]
        self._own = own or (bare.rpartition("/")[0] + "/" if url.startswith("http") else bare)
        self.page.goto(f"{url}#/{route}" if route else url)
        return self.page

    def go(self, route: str) -> None:
        """What another address of the page shows."""
        self.page.evaluate("route => { location.hash = `#/${route}`; }", route)

    def close(self) -> list[str]:
        """What went wrong."""
        self.context.close()
        return self.problems

    def _said(self, message: Any) -> None:
        if message.type not in QUIET:
            self.problems.append(f"console {message.type}: {message.text}")

    def _asked(self, dialog: Any) -> None:
        self.problems.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _requested(self, request: Any) -> None:
        self.requests.append(request.url)
        own = request.url.startswith("data:") or request.url.partition("#")[0].startswith(self._own or "about:")
        if not own:
            self.problems.append(f"request: {request.url}")


class _Files(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        """Nothing: a test's output is its own."""

    def send_head(self) -> Any:
        # A browser asks for the icon of every site by itself; that is no request of the page's.
        if urlsplit(self.path).path == "/favicon.ico":
            self.send_response(204)
            self.end_headers()
            return None
        return super().send_head()


@contextmanager
def static_host(folder: Path) -> Iterator[str]:
    """A folder behind a plain server of files: the address of its index."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Files, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/index.html"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
