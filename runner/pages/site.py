"""A site: HTML sections for browsers without JavaScript, data for its script, and two ways to store it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from runner.pages.html import render_page

StorePiece = Callable[[str, bytes], None]
"""Stores a compressed piece of data under its name: in the page itself, in a file, or in a server's memory."""


@dataclass(frozen=True)
class Section:
    """The content at one address of a site, for browsers without JavaScript."""

    route: str
    """The address after `#/`, such as "run/ID" or "board". The first section is also the start page."""
    html: Markup


@dataclass(frozen=True)
class Site:
    """Pages of runs or boards, before they are stored in a file or folder."""

    title: str
    links: Sequence[tuple[str, str]]
    """The navigation: routes and their names."""
    sections: Sequence[Section]
    about: Mapping[str, Any]
    """Data that the script reads first; docs/reference/report-files.md documents it."""


def as_one_file(site: Site, data: Mapping[str, bytes]) -> Iterator[bytes]:
    """Yield the parts of a page that contains all of its data, so it can be opened from disk."""
    return render_page(
        site.title, site.links, [(section.route, section.html) for section in site.sections], site.about, data
    )


def as_index(site: Site) -> bytes:
    """Return the page of a site whose data is in separate files, at `data/NAME.json.gz`."""
    sections = [(section.route, section.html) for section in site.sections]
    return b"".join(render_page(site.title, site.links, sections, site.about, {}, connects=True))
