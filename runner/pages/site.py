"""A site: the sections that are read without a script, what the script is told first, and how both are carried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from runner.pages.html import html

Keep = Callable[[str, bytes], None]
"""Takes a piece of data by its name, compressed: into the page itself, a file beside it, a server's memory."""


@dataclass(frozen=True)
class Section:
    """What one address of a site shows without a script."""

    route: str
    """After `#/`: "run/ID", "board"; the first section of a site is also shown without any."""
    html: Markup


@dataclass(frozen=True)
class Site:
    """Pages of runs or boards, before anybody carries them."""

    title: str
    links: Sequence[tuple[str, str]]
    """The navigation: each a route and its name. What only a script can show has the mark `True` in `about`."""
    sections: Sequence[Section]
    about: Mapping[str, Any]
    """What the script reads first; docs/reference/report-files.md has it."""


def as_one_file(site: Site, data: Mapping[str, bytes]) -> Iterator[bytes]:
    """A site that needs nothing beside it and opens from the disk, in parts."""
    return html(site.title, site.links, [(one.route, one.html) for one in site.sections], site.about, data)


def as_index(site: Site) -> bytes:
    """The page of a site whose data stand beside it, at `data/NAME.json.gz`."""
    sections = [(one.route, one.html) for one in site.sections]
    return b"".join(html(site.title, site.links, sections, site.about, {}, connects=True))
