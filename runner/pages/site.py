"""A site: HTML sections for browsers without JavaScript, and data for its script, in one file or several."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from runner.pages.html import PageView, policy, render_template, script, style

StorePiece = Callable[[str, bytes], None]
"""Stores a compressed piece of data under its name: in the page itself, in a file, or in a server's memory."""


@dataclass(frozen=True)
class Section:
    """The content at one route of a site, for browsers without JavaScript."""

    route: str
    """The address after `#/`, such as "run/ID" or "board". The first section is also the start page."""
    html: Markup


@dataclass(frozen=True)
class Site:
    """Pages of runs or boards, before they are stored in a file or folder."""

    title: str
    links: Sequence[tuple[str, str]]
    """The route and the name of each link in the navigation."""
    sections: Sequence[Section]
    about: Mapping[str, Any]
    """Data that the script reads first; docs/reference/report-files.md documents it."""


_DATA_MARK = Markup("<!-- the data of this page -->")
"""Marks the place of the data in a page. No other text can contain this mark, because its `<` would be escaped."""


def as_one_file(site: Site, data: Mapping[str, bytes], *, connects: bool = False) -> Iterator[bytes]:
    """Yield the bytes of a page that contains its data, so that a browser can open it from disk.

    `connects` allows the page to read more data from its own server.
    """
    view = PageView(
        title=site.title,
        policy=policy(connects=connects),
        style=Markup(style()),  # noqa: S704 - a file of this package
        script=Markup(script()),  # noqa: S704 - a file of this package
        links=site.links,
        sections=[(section.route, section.html) for section in site.sections],
        about=site.about,
        carriers=_DATA_MARK,
    )
    before, after = render_template("base.html", view).encode("utf-8", "backslashreplace").split(_DATA_MARK.encode())
    yield before
    for name, piece in data.items():
        opening_tag = Markup('<script type="application/octet-stream" id="data-{}">').format(name)
        yield f"{opening_tag}{base64.b64encode(piece).decode()}</script>\n".encode()
    yield after


def as_index(site: Site) -> bytes:
    """Return the page of a site whose data is in separate files, at `data/NAME.json.gz`."""
    return b"".join(as_one_file(site, {}, connects=True))
