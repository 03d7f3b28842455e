"""Numbers as pages write them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from runner.base import text

MISSING = "–"
"""Stands where there is no number."""


def count(number: int | None) -> str:
    return MISSING if number is None else f"{number:,}"


def decimal(value: float | None) -> str:
    return text.decimal(value, none=MISSING)


def percent(part: int, of: int) -> str:
    return MISSING if not of else f"{100 * part / of:.1f} %"


def dollars(cost: float | None) -> str:
    """Four decimals below ten dollars, since a game may cost a fraction of a cent."""
    if cost is None:
        return "not known"
    return f"${cost:,.2f}" if cost >= 10 or not cost else f"${cost:,.4f}"


def interval(row: Mapping[str, Any]) -> str:
    """The 95 % interval of a metric: `0.620 to 0.790`; nothing if there is none."""
    return " to ".join(text.interval_ends(row["ci_low"], row["ci_high"]) or ())


def took(started: str | None, finished: str | None) -> str:
    """The time between two times of a manifest; nothing where one of them is not told."""
    if not started or not finished:
        return ""
    try:
        seconds = int((datetime.fromisoformat(finished) - datetime.fromisoformat(started)).total_seconds())
    except ValueError:  # as another program wrote it
        return ""
    minutes, seconds = divmod(max(seconds, 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s" if minutes else f"{seconds} s"
