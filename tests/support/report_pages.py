"""Pages of `nip-run report`, and their text and elements without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

from markupsafe import Markup

from runner.pages.boards.lists import local_board
from runner.pages.boards.page import board_site
from runner.pages.html import mark_hidden
from runner.pages.report.run_site import runs_site
from runner.pages.site import as_one_file
from runner.pages.site_folder import site_folder
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results

VOID_ELEMENTS = frozenset(
    ["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"]
)


def report(*runs: Path) -> bytes:
    """Return the report of some runs as one HTML file."""
    data: dict[str, bytes] = {}
    return b"".join(as_one_file(runs_site([RunFolder(run) for run in runs], data.__setitem__), data))


def report_folder(folder: Path, *runs: Path) -> None:
    """Write the report of some runs to a folder of static files."""
    with site_folder(folder) as site:
        site.put(runs_site([RunFolder(run) for run in runs], site.store))


def board_report(results: Path) -> bytes:
    """Return the leaderboard of a results folder as one HTML file."""
    data: dict[str, bytes] = {}
    return b"".join(as_one_file(board_site(local_board(Results(results)), data.__setitem__), data))


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]


@dataclass
class ParsedPage:
    """A page as a browser without JavaScript shows it."""

    elements: list[Element] = field(default_factory=list)
    text: str = ""
    """The text of all elements except scripts and styles."""
    unclosed: list[str] = field(default_factory=list)


class _PageParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.read, self.parts, self.open = ParsedPage(), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.read.elements.append(Element(tag, dict(attrs)))
        if tag not in VOID_ELEMENTS:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.read.elements.append(Element(tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                self.read.unclosed.append(tag)
        else:
            self.read.unclosed.append(f"/{tag}")

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] not in ("script", "style"):
            self.parts.append(data)


def parse_page(page: bytes | str) -> ParsedPage:
    """Parse a page."""
    reader = _PageParser()
    reader.feed(page.decode() if isinstance(page, bytes) else page)
    reader.close()
    reader.read.text = "".join(reader.parts)
    reader.read.unclosed += reader.open
    return reader.read


def visible_text(text: str) -> str:
    """Return a text as a page shows it: with the names of invisible characters."""
    return parse_page(Markup("{}").format(mark_hidden(text))).text
