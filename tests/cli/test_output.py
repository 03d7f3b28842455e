"""Tables that keep ids unbroken at any width, and short times."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from runner.cli.terminal.layout import GAP, Column, fit_columns
from runner.cli.terminal.output import format_time

TEXT, ID, NUMBER = Column(16, 60), Column(40, 40), Column(4, 4)


@pytest.mark.parametrize(
    ("width", "drop", "expected"),
    [
        (200, (), {0: 40, 1: 60, 2: 4}),
        (80, (), {0: 40, 1: 32, 2: 4}),
        (64, (), {0: 40, 1: 16, 2: 4}),
        (63, (2,), {0: 40, 1: 21}),
        (63, (2, 1), {0: 40, 1: 21}),
        (50, (1, 2), {0: 40, 2: 4}),
        (50, (2, 1), {0: 40}),
        (39, (2, 1), {0: 40}),
        (63, (), {0: 40, 1: 16, 2: 4}),
    ],
)
def test_narrow_tables_fold_text_then_drop_columns_and_never_break_ids(
    width: int, drop: tuple[int, ...], expected: dict[int, int]
) -> None:
    widths = fit_columns((ID, TEXT, NUMBER), width, drop)
    assert widths == expected
    narrowest = sum(column.min_width for index, column in enumerate((ID, TEXT, NUMBER)) if index in widths)
    assert sum(widths.values()) + GAP * (len(widths) - 1) <= max(width, narrowest + GAP * (len(widths) - 1))


@pytest.mark.parametrize(
    ("ago", "expected"),
    [
        (timedelta(seconds=20), "just now"),
        (timedelta(minutes=2, seconds=10), "2 min ago"),
        (timedelta(minutes=59, seconds=59), "59 min ago"),
        (timedelta(hours=3), "12:31"),
        (timedelta(days=2), "20 Nov 15:31"),
        (timedelta(days=700), "2024-12-22"),
        (timedelta(minutes=-2), "15:33"),
    ],
)
def test_times_are_formatted_briefly(ago: timedelta, expected: str) -> None:
    now = datetime(2026, 11, 22, 15, 31, tzinfo=UTC)
    assert format_time((now - ago).isoformat(), now) == expected


def test_values_that_are_not_times_are_shown_unchanged() -> None:
    assert (format_time(None), format_time("soon")) == ("-", "soon")
