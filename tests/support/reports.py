"""Pages as `nip-run report` makes them, and their texts as a reader has them."""

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

VOID = frozenset(["area", "base", "br", "col", "embed", "hr", "img", "input", "link", "meta", "source", "track", "wbr"])


def report(*runs: Path) -> bytes:
    """Runs as one file."""
    data: dict[str, bytes] = {}
    return b"".join(as_one_file(runs_site([RunFolder(run) for run in runs], data.__setitem__), data))


def report_folder(folder: Path, *runs: Path) -> None:
    """Runs as a folder for a server of files."""
    with site_folder(folder) as made:
        made.put(runs_site([RunFolder(run) for run in runs], made.store))


def board_report(results: Path) -> bytes:
    """A results folder's leaderboard as one file."""
    data: dict[str, bytes] = {}
    return b"".join(as_one_file(board_site(local_board(Results(results)), data.__setitem__), data))


@dataclass
class Element:
    tag: str
    attributes: dict[str, str | None]


@dataclass
class Read:
    """A page as a browser without a script has it."""

    elements: list[Element] = field(default_factory=list)
    text: str = ""
    """Of all elements but scripts and styles."""
    unclosed: list[str] = field(default_factory=list)


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.read, self.parts, self.open = Read(), list[str](), list[str]()

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        self.read.elements.append(Element(tag, dict(attrs)))
        if tag not in VOID:
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


def read(page: bytes | str) -> Read:
    """A page's elements and its text."""
    reader = _Reader()
    reader.feed(page.decode() if isinstance(page, bytes) else page)
    reader.close()
    reader.read.text = "".join(reader.parts)
    reader.read.unclosed += reader.open
    return reader.read


def as_shown(text: str) -> str:
    """A text as a reader of a page has it: what cannot be seen by its name."""
    return read(Markup("{}").format(mark_hidden(text))).text
