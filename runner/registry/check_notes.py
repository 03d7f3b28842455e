"""Types for the messages of checks, which tell failures and notes apart, and a limit on the messages of a check.

The checks of `publish`, `verify` and `reproduce` use these types.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Self

MAX_LISTED = 20
"""Maximum number of differences of one kind in a list. Further ones are only counted."""


class CheckNote(str):
    """A message of a check that is only a note. All other messages of checks are failures."""

    __slots__ = ()


class UncheckedNote(CheckNote):
    """A note about numbers that cannot be checked, because a plugin or another version of nip-run computed them."""

    __slots__ = ()


class OmittedDifferences(str):
    """The last line of a list, which stands for `number` differences that are not listed."""

    __slots__ = ("number",)
    number: int

    def __new__(cls, line: str, number: int) -> Self:
        self = super().__new__(cls, line)
        self.number = number
        return self

    def __getnewargs__(self) -> tuple[str, int]:  # type: ignore[override]
        """Return the arguments of `__new__`, so that a copy or a pickle of the line keeps its number."""
        return str(self), self.number


def count_differences(lines: Iterable[str]) -> int:
    """Return the number of differences, including the omitted ones."""
    return sum(line.number if isinstance(line, OmittedDifferences) else 1 for line in lines)


def limit_messages(lines: Iterable[str], unit: str) -> Iterator[str]:
    """Yield the first `MAX_LISTED` differences, then a line such as "and 5 more rows", where `unit` is "rows"."""
    differences = iter(lines)
    yield from islice(differences, MAX_LISTED)
    if omitted := sum(1 for _ in differences):
        yield OmittedDifferences(f"and {omitted:,} more {unit}", omitted)
