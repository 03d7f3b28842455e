"""A server's pages as a browser without JavaScript has them: links, forms, cookies."""

from __future__ import annotations

import http.client
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import urlencode, urlsplit

from tests.support.hang_guard import HANG_SECONDS
from tests.support.serving import Answered, Served

SECONDS = 60
"""For what a machine with much else to do may take."""


@dataclass
class Browsing:
    """Asks as one browser does, which keeps cookies and sends forms from the pages that it was shown."""

    served: Served
    cookies: dict[str, str] = field(default_factory=dict)
    said: list[str] = field(default_factory=list)
    """How each cookie was set."""

    def ask(self, path: str, form: Mapping[str, str] | None = None, method: str = "GET", **headers: str) -> Answered:
        """One request; a form is posted as browsers do, from a page of the same server."""
        if self.cookies:
            headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        body = None
        if form is not None:
            method, body = "POST", urlencode(form).encode()
            usual = {"Content-Type": "application/x-www-form-urlencoded", "Origin": self.served.address}
            headers = {**usual, **headers}
        connection = http.client.HTTPConnection("127.0.0.1", self.served.port, timeout=HANG_SECONDS)
        try:
            connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
            response = connection.getresponse()
            for said in response.headers.get_all("set-cookie") or []:
                name, _, value = said.partition(";")[0].partition("=")
                self.cookies[name] = value.strip('"')
                self.said.append(said)
            found = {name.lower(): value for name, value in response.getheaders()}
            return Answered(response.status, found, response.read())
        finally:
            connection.close()

    def page(self, path: str) -> str:
        """A page that is there, once it is made."""
        return self.once(path, lambda answer: answer.status == 200).body.decode()

    def once(self, path: str, is_good: Callable[[Answered], bool]) -> Answered:
        """What an address says once it is as wanted: boards and pages are made beside the server."""
        started = time.monotonic()
        while not is_good(answer := self.ask(path)):
            waited = time.monotonic() - started
            assert waited < HANG_SECONDS, (path, answer.status, answer.body[:300])
            time.sleep(min(max(0.1, waited / 20), 0.5))
        return answer

    def sign_in(self, token: str) -> Answered:
        """Through the form."""
        word = hidden_word(self.page("/login"))
        return self.ask("/login", {"word": word, "token": token})


def hidden_word(html: str) -> str:
    """The word in a page's form, which no page of another site knows."""
    found = re.search(r'name="word" value="([^"]*)"', html)
    assert found is not None
    return found[1]


class Links(HTMLParser):
    """The addresses that a page leads to, asks for, or sends forms to; and its elements."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """As inherited."""
        said = dict(attrs)
        self.tags.append((tag, said))
        self.found += [said[name] or "" for name in ("href", "src", "action") if said.get(name)]

    @property
    def paths(self) -> list[str]:
        """Without what is within the page."""
        return [one for one in self.found if not one.startswith(("#", "data:"))]


def is_ours(address: str) -> bool:
    """Whether an address is one of the same server."""
    parts = urlsplit(address)
    return not parts.scheme and not parts.netloc and parts.path.startswith("/") and not address.startswith("//")
