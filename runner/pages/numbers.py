"""Formats numbers for pages."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from runner.base import text

MISSING = "–"
"""Text for a missing number."""


def count(number: int | None) -> str:
    return MISSING if number is None else f"{number:,}"


def decimal(value: float | None, places: int = 3) -> str:
    return text.decimal(value, places, MISSING)


def rank(ranks: tuple[int | None, int | None] | None) -> str:
    """Format the range of a row's ranks, such as `2` or `2–4`; "" if the row is unranked."""
    first, last = ranks or (None, None)
    return "" if first is None else str(first) if first == last else f"{first}–{last}"


def percent(part: int, of: int) -> str:
    return MISSING if not of else f"{100 * part / of:.1f} %"


def dollars(cost: float | None) -> str:
    """Format dollars, with four decimals below ten dollars, because a game may cost a fraction of a cent."""
    if cost is None:
        return "not known"
    return f"${cost:,.2f}" if cost >= 10 or not cost else f"${cost:,.4f}"


def interval(row: Any, between: str = " to ") -> str:
    """Format the 95 % interval of an estimate or its row, such as `0.620 to 0.790`; "" if there is none."""
    fields = row if isinstance(row, Mapping) else vars(row)
    low, high = fields["ci_low"], fields["ci_high"]
    return between.join(text.interval_ends(low, high, text.decimal_places(fields.get("value"), low, high)) or ())


def elapsed(started: str | None, finished: str | None) -> str:
    """Format the duration between two times of a manifest: `2 h 5 min`; "" if one of them is missing."""
    if not started or not finished:
        return ""
    try:
        seconds = int((datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds())
    except ValueError:  # another program wrote this manifest
        return ""
    minutes, seconds = divmod(max(seconds, 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
