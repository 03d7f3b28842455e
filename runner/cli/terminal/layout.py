"""How much of a table fits a terminal: the width of each column, and which columns are left out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

GAP = 2
"""Blanks between two columns."""

SHORT = 24
"""A cell of at most this many characters is never broken: a number, an interval, a time, a state."""

LONGEST_WORD = 128
"""A word of at most this many characters is never broken either: an id, a hash, a path."""

NARROWEST = 16
"""Columns of text are folded to this width, and no further."""


class Column(NamedTuple):
    """What a column needs, in characters of a terminal."""

    least: int
    most: int


def column(header: int, cells: Sequence[str], widths: Sequence[int], header_word: int) -> Column:
    """The column of these cells, as wide as `widths` says; `header_word` is the longest word of its header."""
    most = max((header, *widths))
    words = max((max(map(len, text.split()), default=0) for text in cells), default=0)
    widest = max(widths, default=0)
    is_whole = widest <= SHORT or (words <= LONGEST_WORD and not any(" " in text for text in cells))
    return Column(max(header_word, widest if is_whole else min(widest, NARROWEST)), most)


def fitted(columns: Sequence[Column], width: int, drop: Collection[int] = ()) -> Mapping[int, int]:
    """Return the width of each column that is shown, by its index.

    Columns are left out in the order of `drop`, and only while the rest does not fit. If nothing more can be left out,
    the table is wider than the terminal, which wraps its lines.
    """
    shown = dict(enumerate(columns))
    for index in drop:
        if _needed(shown.values()) <= width:
            break
        del shown[index]
    room = max(width - _needed(shown.values()), 0)
    widths = {index: column.least for index, column in shown.items()}
    # Columns that lack the least get the spare room first, so that as many as possible are whole.
    for index in sorted(shown, key=lambda index: shown[index].most - shown[index].least):
        more = min(shown[index].most - widths[index], room)
        widths[index] += more
        room -= more
    return widths


def _needed(columns: Collection[Column]) -> int:
    return sum(column.least for column in columns) + GAP * max(len(columns) - 1, 0)
