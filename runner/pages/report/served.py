"""Pages that a server sends one at a time, with style and script as separate files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

from markupsafe import Markup

from runner.pages.html import render_template, script, style
from runner.pages.report.games import FORMAT

EMPTY_PAGE_DATA: Mapping[str, Any] = {"format": FORMAT, "runs": [], "live": False, "notes": None}
"""The script's data on a page without dynamic content."""

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy. A page may run the server's script and read data from the same server. Browsers accept
no other file of the server as a script or style, because of its content type."""


@dataclass(frozen=True, kw_only=True)
class View:
    """The content of a template, which reads the fields by their names."""

    template: ClassVar[str]

    def render(self) -> Markup:
        return render_template(f"served/{self.template}.html", self)


@dataclass(frozen=True)
class ServedPage:
    """The content of a page."""

    title: str
    sections: Sequence[tuple[str, Markup]]
    """Route and HTML of each section; the page's script finds a section by its route."""
    about: Mapping[str, Any] = field(default_factory=lambda: EMPTY_PAGE_DATA)
    links: Sequence[tuple[str, str]] = ()
    """Address and name of each link to a page above this one."""
    nav_path: str = ""
    """The path of the navigation link to mark as the current page."""
    wide: bool = False
    """Whether the page uses the full width of a large screen."""
    account: str | None = None
    """The account that is signed in; None on public pages."""
    csrf_token: str = ""
    """The token that protects each form against forged requests."""
    searched: str = ""
    """The text in the search field."""
    reload_seconds: int | None = None
    """Seconds after which the browser reloads the page."""
    script: str = field(init=False, default_factory=lambda: _static_file("js"))
    style: str = field(init=False, default_factory=lambda: _static_file("css"))


def render_served(page: ServedPage) -> bytes:
    """Render a page as HTML."""
    return render_template("served/base.html", page).encode("utf-8", "backslashreplace")


def _static_file(ending: str) -> str:
    return next(name for name in static_files() if name.endswith(f".{ending}"))


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the script and the style sheet with their content types, by file name; each name contains a hash."""
    files = {}
    for text, ending, kind in ((script(), "js", "text/javascript"), (style(), "css", "text/css")):
        data = text.encode()
        files[f"{hashlib.sha256(data).hexdigest()[:16]}.{ending}"] = (data, f"{kind}; charset=utf-8")
    return files
