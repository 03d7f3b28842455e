"""Pages that a server sends one at a time, each at an address of its own, with the style and the script beside them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from markupsafe import Markup

from runner.pages.html import rendered, script, style
from runner.pages.report.games import FORMAT

NOTHING: Mapping[str, Any] = {"format": FORMAT, "runs": [], "live": False, "notes": None}
"""What the script of a page is told that has nothing for it to do."""

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src data:; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""What a page may do: run our script, which stands beside it, and read its data from there. Nothing else that a server
sends is of a type that a browser takes for a script or a style."""


@dataclass(frozen=True)
class ServedPage:
    """One page, before it is HTML."""

    title: str
    sections: Sequence[tuple[str, Markup]]
    """Each with its route, by which the script finds it."""
    about: Mapping[str, Any] = field(default_factory=lambda: NOTHING)
    links: Sequence[tuple[str, str]] = ()
    """What it belongs to: addresses and their names."""
    here: str = ""
    """The address of the entry of the navigation that it is."""
    wide: bool = False
    """Whether it takes all of a large screen."""
    who: str | None = None
    """Who is signed in; of pages of theirs alone."""
    word: str = ""
    """Stands in each form that changes something."""
    searched: str = ""
    again: int | None = None
    """In so many seconds the browser asks once more."""


def served(page: ServedPage) -> bytes:
    """A page as HTML."""
    scripted, styled = static_names()
    facts = {**vars(page), "script": scripted, "style": styled}
    return rendered("served/base.html", facts).encode("utf-8", "backslashreplace")


@cache
def static() -> Mapping[str, tuple[bytes, str]]:
    """The files beside all pages, by names that change with what is in them; each with its type."""
    made = {}
    for text, ending, kind in ((script(), "js", "text/javascript"), (style(), "css", "text/css")):
        data = text.encode()
        made[f"{hashlib.sha256(data).hexdigest()[:16]}.{ending}"] = (data, f"{kind}; charset=utf-8")
    return made


def static_names() -> tuple[str, str]:
    """The names of the script and the style."""
    scripted, styled = static()
    return scripted, styled
