"""Tables that break no id, at any width; times that are short."""

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
def test_texts_fold_then_columns_are_left_out_and_no_id_is_broken(
    width: int, drop: tuple[int, ...], expected: dict[int, int]
) -> None:
    found = fit_columns((ID, TEXT, NUMBER), width, drop)
    assert found == expected
    narrowest = sum(column.min_width for index, column in enumerate((ID, TEXT, NUMBER)) if index in found)
    assert sum(found.values()) + GAP * (len(found) - 1) <= max(width, narrowest + GAP * (len(found) - 1))


@pytest.mark.parametrize(
    ("ago", "shown"),
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
def test_a_time_is_short(ago: timedelta, shown: str) -> None:
    now = datetime(2026, 11, 22, 15, 31, tzinfo=UTC)
    assert format_time((now - ago).isoformat(), now) == shown


def test_what_is_no_time_is_shown_as_it_is() -> None:
    assert (format_time(None), format_time("soon")) == ("-", "soon")
