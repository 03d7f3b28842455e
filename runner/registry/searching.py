"""Looking for something in all bytes of a release, piece by piece: where it stands, by file and line, never what."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from runner.releases.bundle import Content, opened
from runner.text import counted

BLOCK = 1 << 20
REACH = 1 << 14
"""So many bytes of a piece stand in the next one, too: nothing shorter is cut in two."""

TOLD = 5
"""So many places of one thing in one file are told."""

Finder = Callable[[bytes], Iterable[tuple[int, str]]]
"""Bytes into what is found in them: where, and what it is in words that do not show it."""


@dataclass(frozen=True, order=True)
class Found:
    """Something that stands where it must not."""

    file: str
    what: str
    lines: tuple[int, ...]
    """The first of them, counted from 1."""
    more: int = 0

    def __str__(self) -> str:
        places = ", ".join(f"{self.file}:{line}" for line in self.lines)
        more = f" and {counted(self.more, 'more line')}" if self.more else ""
        return f"{places}{more}: {self.what}"


def search(contents: Mapping[str, Content], finders: Sequence[Finder]) -> Iterator[Found]:
    """What finders find, by file.

    Raises:
        OSError: a file cannot be read.
    """
    for path, content in contents.items():
        places: dict[str, dict[int, None]] = {}
        for line, what in _lines(content, finders):
            places.setdefault(what, {})[line] = None
        for what, lines in places.items():
            yield Found(path, what, tuple(lines)[:TOLD], max(len(lines) - TOLD, 0))


def _lines(content: Content, finders: Sequence[Finder]) -> Iterator[tuple[int, str]]:
    before, kept = 1, b""
    with opened(content) as file:
        while block := file.read(BLOCK):
            window = kept + block
            for finder in finders:
                for at, what in finder(window):
                    yield before + window.count(b"\n", 0, at), what
            kept = window[-REACH:]
            before += window.count(b"\n", 0, len(window) - len(kept))
