"""Types for the messages of checks, and a limit on how many differences a check lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Self

MAX_LISTED = 20
"""Maximum number of differences of one kind that are listed; the others are only counted."""


class CheckNote(str):
    """A message of a check that is not a failure."""

    __slots__ = ()


class VersionNote(CheckNote):
    """A note on a number that cannot be checked, because another version computed it differently or not at all."""

    __slots__ = ()


class OmittedDifferences(str):
    """A line that stands for `number` differences that are not listed."""

    __slots__ = ("number",)
    number: int

    def __new__(cls, line: str, number: int) -> Self:
        self = super().__new__(cls, line)
        self.number = number
        return self


def count_differences(lines: Iterable[str]) -> int:
    """Return the number of differences, including those that an `OmittedDifferences` stands for."""
    return sum(line.number if isinstance(line, OmittedDifferences) else 1 for line in lines)


def limit_differences(lines: Iterable[str], noun: str) -> Iterator[str]:
    """Yield the first `MAX_LISTED` differences, and a line with the number of the others."""
    omitted = 0
    for number, line in enumerate(lines):
        if number < MAX_LISTED:
            yield line
        else:
            omitted += 1
    if omitted:
        yield OmittedDifferences(f"and {omitted:,} more {noun}", omitted)
