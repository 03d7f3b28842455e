"""The sections of a report, parsed: text, tables by caption, and links."""

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
from runner.rollouts.plan import Plan


class SummarySection(HTMLParser):
    """One section of a report, parsed without running scripts."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.links: dict[str, str] = {}
        """Text of each link by its address."""
        self.tables: dict[str, list[list[str]]] = {}
        """Rows of each table by its caption; the header is the first row."""
        self.headings: list[tuple[int, str]] = []
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self._rows: list[list[str]] = []
        self._text_parts: list[str] = []
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
            self._text_parts = []
        if tag == "a":
            self._href = dict(attrs).get("href") or ""
            self.links[self._href] = ""

    def handle_endtag(self, tag: str) -> None:
        text = " ".join("".join(self._text_parts).split())
        if tag == "caption":
            self.tables[text] = self._rows
        elif tag in ("td", "th"):
            self._rows[-1].append(text)
        elif tag in ("h2", "h3", "h4"):
            self.headings.append((int(tag[1]), text))
        elif tag == "a":
            self._href = ""

    def handle_data(self, data: str) -> None:
        self.text += data
        self._text_parts.append(data)
        if self._href:
            self.links[self._href] += data

    def table(self, caption: str) -> list[dict[str, str]]:
        """Return the rows, by column name, of the table whose caption starts with `caption`."""
        header, *rows = next(table for text, table in self.tables.items() if text.startswith(caption))
        return [dict(zip(header, row, strict=True)) for row in rows]


def build_site(*runs: Path | RunFolder) -> tuple[Site, dict[str, bytes]]:
    """Build the site of some runs; return it with its data files."""
    data: dict[str, bytes] = {}
    folders = [run if isinstance(run, RunFolder) else RunFolder(run) for run in runs]
    return runs_site(folders, data.__setitem__), data


def read_summaries(*runs: Path | RunFolder) -> dict[str, SummarySection]:
    """Return the parsed sections of the site of some runs, by route."""
    site, _ = build_site(*runs)
    return {section.route: SummarySection(str(section.html)) for section in site.sections}


def build_run_pages(*runs: Path) -> list[RunPage]:
    """Build the pages of runs in one site, without the slower pages that compare them."""
    data: dict[str, bytes] = {}
    run_ids = {run.name for run in runs}

    def gather(folder: RunFolder, slug: str, plan: Plan) -> CollectedGames:
        return collect_games(folder, slug, data.__setitem__, plan)

    return [run_page(RunFolder(run), f"r{number}", run_ids, gather) for number, run in enumerate(runs)]


def unpack_piece(data: dict[str, bytes], name: str) -> Any:
    """Unpack a data file as the script of a page does."""
    return json.loads(gzip.decompress(data[name]))
