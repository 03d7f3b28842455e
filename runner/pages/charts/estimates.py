"""What charts show of a metric: a value with the ends of its interval, under a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.pages.charts.labels import known, told_between


@dataclass(frozen=True)
class ChartEstimate:
    """`value`, None where there is none; an end that is None is open, both of them: there is no interval."""

    name: str
    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    """What else is told of it: `n 96`, why there is no value."""

    @classmethod
    def of(cls, name: str, row: Mapping[str, Any], note: str = "") -> ChartEstimate:
        """Of a row with `value`, `ci_low` and `ci_high`, as `metrics.json` and the board have them."""
        return cls(name, row["value"], row["ci_low"], row["ci_high"], note or (row.get("reason") or ""))

    @property
    def ends(self) -> tuple[float | None, float | None] | None:
        """The interval; None where there is none to draw."""
        low, high = known(self.low), known(self.high)
        return None if known(self.value) is None or (low is None and high is None) else (low, high)

    def text(self, decimals: int = 3) -> str:
        """Format the value with its interval."""
        return told_between(self.value, self.low, self.high, decimals)


def values_of(estimates: Sequence[ChartEstimate]) -> list[float | None]:
    """All that is drawn of them: values and the ends of intervals."""
    return [number for one in estimates for number in (known(one.value), *(one.ends or ()))]
