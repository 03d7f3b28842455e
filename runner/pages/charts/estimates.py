"""Estimates for charts: a named value with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.pages.charts.labels import drawable, format_interval


@dataclass(frozen=True)
class ChartEstimate:
    """A named value with an interval. None stands for a missing value or an open end; without ends, the interval is
    missing.
    """

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Further facts, such as `n 96` or the reason for a missing value."""

    @classmethod
    def of(cls, name: str, row: Mapping[str, Any], note: str = "") -> ChartEstimate:
        """Build an estimate from a row with `value`, `ci_low` and `ci_high`, as in `metrics.json` and on the board."""
        return cls(name, row["value"], row["ci_low"], row["ci_high"], note or (row.get("reason") or ""))

    @property
    def ends(self) -> tuple[float | None, float | None] | None:
        """The interval, or None if there is none to draw."""
        low, high = drawable(self.low), drawable(self.high)
        return None if drawable(self.value) is None or (low is None and high is None) else (low, high)

    def text(self) -> str:
        """Format the value with its interval."""
        return format_interval(self.value, self.low, self.high)

    def text_with_note(self) -> str:
        return f"{self.text()}, {self.note}" if self.note else self.text()


def values_of(estimates: Sequence[ChartEstimate]) -> list[float | None]:
    """Return all numbers that a chart draws: values and the ends of intervals."""
    return [number for estimate in estimates for number in (drawable(estimate.value), *(estimate.ends or ()))]
