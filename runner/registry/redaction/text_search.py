"""Search of all bytes of a release, block by block, with the files and lines of each occurrence."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner.base.text import counted
from runner.documents.releases.bundle import Content, open_content

BLOCK = 1 << 20
OVERLAP = 1 << 14
"""Bytes of a block that are searched again with the next one, to find texts that cross the boundary."""

MAX_PLACES = 5
"""Places of one cause that a message lists."""


class Cause(NamedTuple):
    """A reason why some text must not be published."""

    description: str
    """A description that does not contain the text."""
    text: str | None = None
    """The text itself, which `--allow-name` allows; None for a secret, which is never shown or allowed."""

    def __str__(self) -> str:
        return self.description if self.text is None else f"{self.text!r} ({self.description})"


Finder = Callable[[bytes], Iterable[tuple[int, Cause]]]
"""A function that finds text that must not be published: the offset of each occurrence in the bytes, and its cause."""


@dataclass(frozen=True)
class Occurrences:
    """The occurrences of one cause in one file."""

    file: str
    cause: Cause
    lines: tuple[int, ...]
    """The lines of the first occurrences, counted from 1."""
    count: int


class PrivateText(str):
    """The message of a failed check: all occurrences of one cause, in one line."""

    __slots__ = ("occurrences",)
    occurrences: tuple[Occurrences, ...]

    @classmethod
    def from_occurrences(cls, occurrences: Iterable[Occurrences]) -> PrivateText:
        """Describe occurrences of one cause: what it is, how often, where, and what to do."""
        files = tuple(occurrences)
        cause, count = files[0].cause, sum(file.count for file in files)
        places = [f"{file.file}:{line}" for file in files for line in file.lines]
        more = ["..."] if len(places) > MAX_PLACES or count > len(places) else []
        remedy = "no option allows a secret"
        if cause.text is not None:
            remedy = f"if it identifies no one, add {shlex.join(['--allow-name', cause.text])}"
        message = cls(
            f"{cause}: {counted(count, 'occurrence')} in {counted(len(files), 'file')}: "
            f"{', '.join([*places[:MAX_PLACES], *more])}; remove it and publish again; {remedy}"
        )
        message.occurrences = files
        return message


def group_by_cause(occurrences: Iterable[Occurrences]) -> list[PrivateText]:
    """Group occurrences by cause, in the order of their first occurrence."""
    by_cause: dict[Cause, list[Occurrences]] = {}
    for in_file in occurrences:
        by_cause.setdefault(in_file.cause, []).append(in_file)
    return [PrivateText.from_occurrences(in_files) for in_files in by_cause.values()]


def search(contents: Mapping[str, Content], finders: Sequence[Finder]) -> Iterator[Occurrences]:
    """Search files with all finders.

    Raises:
        OSError: a file cannot be read.
    """
    for path, content in contents.items():
        lines: dict[Cause, dict[int, None]] = {}
        counts: Counter[Cause] = Counter()
        last: dict[Cause, int] = {}
        for offset, line, cause in _matches(content, finders):
            if offset > last.get(cause, -1):  # neighboring blocks overlap
                counts[cause] += 1
                last[cause] = offset
            lines.setdefault(cause, {})[line] = None
        for cause, numbers in lines.items():
            yield Occurrences(path, cause, tuple(numbers)[:MAX_PLACES], counts[cause])


def _matches(content: Content, finders: Sequence[Finder]) -> Iterator[tuple[int, int, Cause]]:
    """Yield the offset and the line of each match in a file."""
    start, line, overlap = 0, 1, b""
    with open_content(content) as file:
        while block := file.read(BLOCK):
            window = overlap + block
            for finder in finders:
                for offset, cause in finder(window):
                    yield start + offset, line + window.count(b"\n", 0, offset), cause
            overlap = window[-OVERLAP:]
            start += len(window) - len(overlap)
            line += window.count(b"\n", 0, len(window) - len(overlap))
