"""Numbers to places: linear and logarithmic scales, and the ticks of their axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runner.pages.charts.labels import known, short

_STEPS = (1.0, 2.0, 5.0, 10.0)
_MOST_TICKS = 50
_DECADES = 1.3
"""From so many powers of ten on, amounts are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Tick:
    value: float
    label: str


@dataclass(frozen=True)
class Scale:
    """`low` to `high`, which are not equal, drawn from `start` to `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """The place of a value; one that is outside stands at the nearest end."""
        inside = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def places(self, ends: tuple[float | None, float | None]) -> tuple[float, float]:
        """Return the places of the ends of an interval; an open end is at the end of the scale."""
        return (self.start if ends[0] is None else self.at(ends[0])), (
            self.end if ends[1] is None else self.at(ends[1])
        )

    def ticks(self, most: int = 6) -> list[Tick]:
        """Round numbers inside the scale, at most so many where it is linear."""
        return _decades(self.low, self.high, most) if self.logarithmic else _even(self.low, self.high, most)


def extent(values: Iterable[Any], *, low: float | None = None, high: float | None = None) -> tuple[float, float]:
    """From the smallest to the largest of the values and the ends that are to be in it, on round numbers.

    Without any, 0 to 1.
    """
    every = [number for value in (*values, low, high) if (number := known(value)) is not None]
    if not every:
        return 0.0, 1.0
    first, last = min(every), max(every)
    if first == last or last - first <= abs(last) * 1e-12:
        wide = abs(first) * 0.1 or 1.0
        first, last = first - (0 if first == low else wide), last + wide
    step = _step(last - first, 6)
    begin, end = math.floor(first / step + 1e-9) * step, math.ceil(last / step - 1e-9) * step
    return (first if low == first else begin), (last if high == last else end)


def decades(values: Iterable[Any]) -> tuple[float, float] | None:
    """The ends of a logarithmic scale; None where the values are too near to each other, or some are not above 0."""
    every = [number for value in values if (number := known(value)) is not None]
    if not every or min(every) <= 1e-12 or math.log10(max(every) / min(every)) < _DECADES:
        return None
    return min(every) / 1.6, max(every) * 1.6


def _step(span: float, most: int) -> float:
    """The smallest of 1, 2, 5, 10, 20, ... and their tenths that divides a span into at most so many parts."""
    rough = span / max(most, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next((power * one for one in _STEPS if power * one >= rough * (1 - 1e-9)), power * 10)


def _even(low: float, high: float, most: int) -> list[Tick]:
    step = _step(high - low, most)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    count = min(last - first + 1, _MOST_TICKS)
    return [Tick(place * step, short(place * step, decimals)) for place in range(first, first + count)]


def _decades(low: float, high: float, most: int) -> list[Tick]:
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    factors = (1,) if len(powers) >= 3 else (1, 2, 5)
    found = [
        factor * 10.0**power
        for power in range(powers.start - 1, powers.stop + 1)
        for factor in factors
        if low <= factor * 10.0**power <= high
    ]
    every = max(1, math.ceil(len(found) / max(most, 1)))
    return [Tick(value, short(value, max(0, -math.floor(math.log10(value) + 1e-9)))) for value in found[::every]]
