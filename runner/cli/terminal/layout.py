"""Choose the columns of a table that fit into a terminal, and their widths."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from runner.cli.terminal.wrapping import display_width

GAP = 2
"""Number of spaces between two columns."""

MAX_UNBROKEN_CELL = 24
"""A cell of at most this many characters is never broken: a number, an interval, a time, a state."""

MAX_UNBROKEN_WORD = 128
"""A word of at most this many characters is never broken: an id, a hash, a path."""

MIN_TEXT_WIDTH = 16
"""Minimum width of a column whose text is wrapped."""


class Column(NamedTuple):
    """The minimum and maximum width of a column, in terminal characters."""

    min_width: int
    max_width: int


def measure_column(header: str, cells: Sequence[str]) -> Column:
    """Return the minimum and maximum width of a column. A cell may have several lines."""
    lines = [line for cell in cells for line in cell.split("\n")]
    header_width, header_word = display_width(header), max(map(display_width, header.split()), default=0)
    widest_cell = max(map(display_width, lines), default=0)
    longest_word = max((len(word) for line in lines for word in line.split()), default=0)
    is_unbreakable = widest_cell <= MAX_UNBROKEN_CELL or (
        longest_word <= MAX_UNBROKEN_WORD and not any(" " in line for line in lines)
    )
    min_cell_width = widest_cell if is_unbreakable else min(widest_cell, MIN_TEXT_WIDTH)
    return Column(max(header_word, min_cell_width), max(header_width, widest_cell))


def fit_columns(columns: Sequence[Column], width: int, drop: Collection[int] = ()) -> Mapping[int, int]:
    """Return the index and the width of each column that is shown.

    Columns are left out in the order of `drop`, until the others fit. If all columns of `drop` are left out and the
    others still do not fit, the table is wider than the terminal, which then wraps its lines.
    """
    remaining = dict(enumerate(columns))
    for index in drop:
        if _total_width(remaining.values()) <= width:
            break
        del remaining[index]
    spare = max(width - _total_width(remaining.values()), 0)
    widths = {index: column.min_width for index, column in remaining.items()}
    # Columns that need the least extra width get it first, so that as many columns as possible are complete.
    for index in sorted(remaining, key=lambda index: remaining[index].max_width - remaining[index].min_width):
        extra = min(remaining[index].max_width - widths[index], spare)
        widths[index] += extra
        spare -= extra
    return widths


def _total_width(columns: Collection[Column]) -> int:
    return sum(column.min_width for column in columns) + GAP * max(len(columns) - 1, 0)
