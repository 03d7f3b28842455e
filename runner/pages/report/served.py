"""Pages that a server sends one at a time, with style and script as separate files."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from markupsafe import Markup

from runner.pages.html import render_template, script, style
from runner.pages.report.games import FORMAT

NOTHING: Mapping[str, Any] = {"format": FORMAT, "runs": [], "live": False, "notes": None}
"""The script's data on a page without dynamic content."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""The content security policy: a page may run the server's script and read its data from the same server. No other
file of the server has a type that a browser accepts as a script or style."""


@dataclass(frozen=True)
class ServedPage:
    """The content of a page."""

    title: str
    sections: Sequence[tuple[str, Markup]]
    """Sections with the routes that the script finds them by."""
    about: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    links: Sequence[tuple[str, str]] = ()
    """Links to the pages above this one: addresses and names."""
    here: str = ""
    """The address of the page's own entry in the navigation."""
    wide: bool = False
    """Whether the page uses the full width of a large screen."""
    who: str | None = None
    """The account that is signed in; None on public pages."""
    word: str = ""
    """The token that protects each form against forged requests."""
    searched: str = ""
    again: int | None = None
    """Seconds after which the browser reloads the page."""


def render_served(page: ServedPage) -> bytes:
    """Render a page as HTML."""
    script_name, style_name = static_files()
    facts = {**vars(page), "script": script_name, "style": style_name}
    return render_template("served/base.html", facts).encode("utf-8", "backslashreplace")


@cache
def static_files() -> Mapping[str, tuple[bytes, str]]:
    """Return the script and the style by file name, each with its content type; names have a hash of the content."""
    files = {}
    for text, ending, kind in ((script(), "js", "text/javascript"), (style(), "css", "text/css")):
        data = text.encode()
        files[f"{hashlib.sha256(data).hexdigest()[:16]}.{ending}"] = (data, f"{kind}; charset=utf-8")
    return files
