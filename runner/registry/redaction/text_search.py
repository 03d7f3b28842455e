"""Search the bytes of all files of a release for text that must not be published, and report the files and lines.

`runner.registry.redaction.private_text` passes the search functions to this module. Files are read in blocks, because
they may be larger than memory.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner.base.batches import group_pairs
from runner.base.text import counted
from runner.documents.releases.bundle import Content, open_content

BLOCK_BYTES = 1 << 20
OVERLAP_BYTES = 1 << 14
"""Number of bytes at the end of a block that are searched again with the next block, to find text in both."""

MAX_PLACES = 5
"""Maximum number of lines that a message lists for one cause."""


class Cause(NamedTuple):
    """A reason why a text must not be published."""

    description: str
    """A description that does not contain the text."""
    text: str | None = None
    """The text, which the user can allow with `--allow-name`; None for a secret, which is never shown."""

    def __str__(self) -> str:
        return self.description if self.text is None else f"{self.text!r} ({self.description})"


Finder = Callable[[bytes], Iterable[tuple[int, Cause]]]
"""A function that returns the offset and cause of each text in the given bytes that must not be published."""


@dataclass(frozen=True)
class Occurrences:
    """The occurrences of one cause in one file."""

    file: str
    cause: Cause
    lines: tuple[int, ...]
    """The lines of the first occurrences, counted from 1."""
    count: int


class PrivateText(str):
    """A message of a failed check, in one line, about all occurrences of one cause."""

    __slots__ = ("occurrences",)
    occurrences: tuple[Occurrences, ...]

    @classmethod
    def from_occurrences(cls, occurrences: Iterable[Occurrences]) -> PrivateText:
        """Return the message: the cause, the number and places of its occurrences, and what to do."""
        files = tuple(occurrences)
        cause, count = files[0].cause, sum(file.count for file in files)
        places = [f"{file.file}:{line}" for file in files for line in file.lines]
        more = ["..."] if len(places) > MAX_PLACES or count > len(places) else []
        remedy = "no option allows a secret"
        if cause.text is not None:
            remedy = f"if it identifies no one, add {shlex.join(['--allow-name', cause.text])}"
        message = cls(
            f"{cause}: {counted(count, 'occurrence')} in {counted(len(files), 'file')}: "
            f"{', '.join([*places[:MAX_PLACES], *more])}; remove this text and publish again; {remedy}"
        )
        message.occurrences = files
        return message


def group_by_cause(occurrences: Iterable[Occurrences]) -> list[PrivateText]:
    """Return one message for each cause, in the order of first occurrence."""
    by_cause = group_pairs((occurrence.cause, occurrence) for occurrence in occurrences)
    return [PrivateText.from_occurrences(same_cause) for same_cause in by_cause.values()]


def search(contents: Mapping[str, Content], finders: Sequence[Finder]) -> Iterator[Occurrences]:
    """Yield the occurrences that the finders find in each file, by cause.

    Raises:
        OSError: a file cannot be read.
    """
    for path, content in contents.items():
        lines_by_cause: dict[Cause, dict[int, None]] = {}
        counts: Counter[Cause] = Counter()
        last_offsets: dict[Cause, int] = {}
        for offset, line, cause in _matches(content, finders):
            if offset > last_offsets.get(cause, -1):  # blocks overlap, so a match may be found twice
                counts[cause] += 1
                last_offsets[cause] = offset
            lines_by_cause.setdefault(cause, {})[line] = None
        for cause, line_numbers in lines_by_cause.items():
            yield Occurrences(path, cause, tuple(line_numbers)[:MAX_PLACES], counts[cause])


def _matches(content: Content, finders: Sequence[Finder]) -> Iterator[tuple[int, int, Cause]]:
    """Yield the offset and the line of each match in a file."""
    start, line, overlap = 0, 1, b""
    with open_content(content) as file:
        while block := file.read(BLOCK_BYTES):
            window = overlap + block
            for finder in finders:
                for offset, cause in finder(window):
                    yield start + offset, line + window.count(b"\n", 0, offset), cause
            overlap = window[-OVERLAP_BYTES:]
            start += len(window) - len(overlap)
            line += window.count(b"\n", 0, len(window) - len(overlap))
