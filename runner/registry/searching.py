"""Search all bytes of a release, block by block, and say in which files and lines something stands."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner.releases.bundle import Content, opened
from runner.text import counted

BLOCK = 1 << 20
REACH = 1 << 14
"""So many bytes of a piece stand in the next one, too: nothing shorter is cut in two."""

TOLD = 5
"""So many places of one thing in one file are told."""


class Cause(NamedTuple):
    """A reason why something must not be published."""

    what: str
    """A description that does not contain the text that was found."""
    word: str | None = None
    """The text itself, which `--allow-name` allows; None for a secret, which is never shown or allowed."""

    def __str__(self) -> str:
        return self.what if self.word is None else f"{self.word!r} ({self.what})"


Finder = Callable[[bytes], Iterable[tuple[int, Cause]]]
"""Find what must not be published in some bytes: the offset of each occurrence, and its cause."""


@dataclass(frozen=True)
class Found:
    """The occurrences of one cause in one file."""

    file: str
    cause: Cause
    lines: tuple[int, ...]
    """The first of them, counted from 1."""
    occurrences: int

    @property
    def places(self) -> list[str]:
        return [f"{self.file}:{line}" for line in self.lines]


class PrivateText(str):
    """A failed check: all occurrences of one cause, in one line."""

    __slots__ = ("found",)
    found: tuple[Found, ...]

    @classmethod
    def of(cls, found: Iterable[Found]) -> PrivateText:
        """Describe occurrences of one cause: what was found, how often, where, and what to do."""
        found = tuple(found)
        cause, count = found[0].cause, sum(one.occurrences for one in found)
        places = [place for one in found for place in one.places]
        shown = ", ".join([*places[:TOLD], *(["..."] if len(places) > TOLD or count > len(places) else [])])
        remedy = "no option allows a secret"
        if cause.word is not None:
            remedy = f"if it identifies nobody, add {shlex.join(['--allow-name', cause.word])}"
        text = cls(
            f"{cause}: {counted(count, 'occurrence')} in {counted(len(found), 'file')}: {shown}; remove it and "
            f"publish again; {remedy}"
        )
        text.found = found
        return text


def grouped(found: Iterable[Found]) -> list[PrivateText]:
    """Group occurrences by cause, in the order in which the causes were found first."""
    by_cause: dict[Cause, list[Found]] = {}
    for one in found:
        by_cause.setdefault(one.cause, []).append(one)
    return [PrivateText.of(of_cause) for of_cause in by_cause.values()]


def search(contents: Mapping[str, Content], finders: Sequence[Finder]) -> Iterator[Found]:
    """Search files with all finders.

    Raises:
        OSError: a file cannot be read.
    """
    for path, content in contents.items():
        places: dict[Cause, dict[int, None]] = {}
        counts: Counter[Cause] = Counter()
        last: dict[Cause, int] = {}
        for offset, line, cause in _matches(content, finders):
            if offset > last.get(cause, -1):  # neighboring blocks overlap
                counts[cause] += 1
                last[cause] = offset
            places.setdefault(cause, {})[line] = None
        for cause, lines in places.items():
            yield Found(path, cause, tuple(lines)[:TOLD], counts[cause])


def _matches(content: Content, finders: Sequence[Finder]) -> Iterator[tuple[int, int, Cause]]:
    """Yield the offset and the line of each match in a file."""
    start, before, kept = 0, 1, b""
    with opened(content) as file:
        while block := file.read(BLOCK):
            window = kept + block
            for finder in finders:
                for at, cause in finder(window):
                    yield start + at, before + window.count(b"\n", 0, at), cause
            kept = window[-REACH:]
            start += len(window) - len(kept)
            before += window.count(b"\n", 0, len(window) - len(kept))
