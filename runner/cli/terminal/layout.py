"""Choose the width of each table column, and which columns to leave out, for a terminal of limited width."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

GAP = 2
"""Number of spaces between two columns."""

MAX_UNBROKEN_CELL = 24
"""A cell of at most this many characters is never broken: a number, an interval, a time, a state."""

MAX_UNBROKEN_WORD = 128
"""A word of at most this many characters is never broken: an id, a hash, a path."""

MIN_TEXT_WIDTH = 16
"""Text columns are not folded to less than this width."""


class Column(NamedTuple):
    """The minimum and maximum width of a column, in terminal characters."""

    min_width: int
    max_width: int


def measure_column(header: int, cells: Sequence[str], widths: Sequence[int], header_word: int) -> Column:
    """Return the widths that a column needs: `widths` are those of its cells, `header_word` that of the longest header
    word.
    """
    max_width = max((header, *widths))
    longest_word = max((max(map(len, text.split()), default=0) for text in cells), default=0)
    widest_cell = max(widths, default=0)
    is_unbreakable = widest_cell <= MAX_UNBROKEN_CELL or (
        longest_word <= MAX_UNBROKEN_WORD and not any(" " in text for text in cells)
    )
    return Column(max(header_word, widest_cell if is_unbreakable else min(widest_cell, MIN_TEXT_WIDTH)), max_width)


def fit_columns(columns: Sequence[Column], width: int, drop: Collection[int] = ()) -> Mapping[int, int]:
    """Return the width of each column that is shown, by its index.

    Columns are left out in the order of `drop`, and only while the rest does not fit. If nothing more can be left out,
    the table is wider than the terminal, which wraps its lines.
    """
    remaining = dict(enumerate(columns))
    for index in drop:
        if _total_width(remaining.values()) <= width:
            break
        del remaining[index]
    spare = max(width - _total_width(remaining.values()), 0)
    widths = {index: column.min_width for index, column in remaining.items()}
    # Columns that lack the least get the spare width first, so that as many as possible are complete.
    for index in sorted(remaining, key=lambda index: remaining[index].max_width - remaining[index].min_width):
        extra = min(remaining[index].max_width - widths[index], spare)
        widths[index] += extra
        spare -= extra
    return widths


def _total_width(columns: Collection[Column]) -> int:
    return sum(column.min_width for column in columns) + GAP * max(len(columns) - 1, 0)
