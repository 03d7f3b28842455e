"""A client for the server's pages that keeps cookies and sends forms, like a browser without JavaScript."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

from tests.support.hang_guard import HANG_SECONDS
from tests.support.server_process import HttpResponse, ServerProcess


@dataclass
class CookieClient:
    """Sends requests as one browser does."""

    served: ServerProcess
    cookies: dict[str, str] = field(default_factory=dict)
    set_cookie_headers: list[str] = field(default_factory=list)

    def request(
        self, path: str, form: Mapping[str, str] | None = None, method: str = "GET", **headers: str
    ) -> HttpResponse:
        """Send one request. A form is posted with the headers that a browser sends from a page of the same server."""
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        body = None
        if form is not None:
            method, body = "POST", urlencode(form).encode()
            form_headers = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.served.address}
            headers = {**form_headers, **headers}
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=HANG_SECONDS)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            for header in response.headers.get_all("set-cookie") or []:
                name, _, value = header.partition(";")[0].partition("=")
                self.cookies[name] = value.strip('"')
                self.set_cookie_headers.append(header)
            received = {name.lower(): value for name, value in response.getheaders()}
            return HttpResponse(response.status, received, response.read())
        finally:
            connection.close()

    def load_page(self, path: str) -> str:
        """Wait until a page exists and return its HTML."""
        return self.wait_for_response(path, lambda response: response.status == 200).body.decode()

    def wait_for_response(self, path: str, is_expected: Callable[[HttpResponse], bool]) -> HttpResponse:
        """Repeat a request until its response is as expected: the server builds boards and pages in the background."""
        started = time.monotonic()
        while not is_expected(response := self.request(path)):
            waited = time.monotonic() - started
            assert waited < HANG_SECONDS, (path, response.status, response.body[:300])
            time.sleep(min(max(0.1, waited / 20), 0.5))
        return response

    def sign_in(self, token: str) -> HttpResponse:
        """Submit the form of the sign-in page."""
        form_token = find_form_token(self.load_page("/login"))
        return self.request("/login", {"word": form_token, "token": token})


def find_form_token(html: str) -> str:
    """Return the token of a page's form, which protects it against requests from other sites."""
    match = re.search(r'name="word" value="([^"]*)"', html)
    assert match is not None
    return match[1]


class LinkParser(HTMLParser):
    """Collects the elements of a page, and the addresses of its links, resources and forms."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.addresses: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        self.addresses += [attributes[name] or "" for name in ("href", "src", "action") if attributes.get(name)]

    @property
    def paths(self) -> list[str]:
        """The addresses outside the page."""
        return [address for address in self.addresses if not address.startswith(("#", "data:"))]


def is_same_server(address: str) -> bool:
    """Return whether an address leads to the same server."""
    parts = urlsplit(address)
    return not parts.scheme and not parts.netloc and parts.path.startswith("/") and not address.startswith("//")
