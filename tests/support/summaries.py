"""What a reader of a summary sees: its sections' text, its tables by their captions, and where its links lead."""

from __future__ import annotations

import gzip
import json
from collections.abc import Sequence
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from runner.pages.report.run import RunPage, collect_games, run_page
from runner.pages.report.run_games import CollectedGames
from runner.pages.report.run_site import runs_site
from runner.pages.site import Site
from runner.results.folder import RunFolder


class Summary(HTMLParser):
    """One section, read without a script."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.links: dict[str, str] = {}
        """By where it leads, its text."""
        self.tables: dict[str, list[list[str]]] = {}
        """By caption, rows of cells, the head's first."""
        self.headings: list[tuple[int, str]] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._rows: list[list[str]] = []
        self._caught: list[str] = []
        self._href = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)
        if tag == "table":
            self._rows = []
        elif tag == "tr":
            self._rows.append([])
        if tag in ("caption", "td", "th", "h2", "h3", "h4"):
            self._caught = []
        if tag == "a":
            self._href = dict(attrs).get("href") or ""
            self.links[self._href] = ""

    def handle_endtag(self, tag: str) -> None:
        said = " ".join("".join(self._caught).split())
        if tag == "caption":
            self.tables[said] = self._rows
        elif tag in ("td", "th"):
            self._rows[-1].append(said)
        elif tag in ("h2", "h3", "h4"):
            self.headings.append((int(tag[1]), said))
        elif tag == "a":
            self._href = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        self._caught.append(data)
        if self._href:
            self.links[self._href] += data

    def table(self, caption: str) -> list[dict[str, str]]:
        """The rows of the table whose caption begins so, by the names of their columns."""
        head, *rows = next(found for said, found in self.tables.items() if said.startswith(caption))
        return [dict(zip(head, row, strict=True)) for row in rows]


def site_of(*runs: Path | RunFolder) -> tuple[Site, dict[str, bytes]]:
    """Runs as a site, and its data."""
    data: dict[str, bytes] = {}
    folders = [run if isinstance(run, RunFolder) else RunFolder(run) for run in runs]
    return runs_site(folders, data.__setitem__), data


def summaries(*runs: Path | RunFolder) -> dict[str, Summary]:
    """The sections of runs' site, by their routes."""
    site, _ = site_of(*runs)
    return {section.route: Summary(str(section.html)) for section in site.sections}


def pages_of(*runs: Path) -> list[RunPage]:
    """The pages of runs that stand in one site, made without those that compare them, which take their time."""
    data: dict[str, bytes] = {}
    here = {run.name for run in runs}

    def gather(folder: RunFolder, slug: str) -> CollectedGames:
        return collect_games(folder, slug, data.__setitem__)

    return [run_page(RunFolder(run), f"r{at}", here, gather) for at, run in enumerate(runs)]


def piece(data: dict[str, bytes], name: str) -> Any:
    """A piece of data as a page's script reads it."""
    return json.loads(gzip.decompress(data[name]))
