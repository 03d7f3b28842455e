"""Linear and logarithmic scales, which map values to coordinates, and the ticks of their axes."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from runner.pages.charts.labels import drawable, format_tick

_STEPS = (1.0, 2.0, 5.0, 10.0)
"""Distances between two ticks, times a power of ten."""
_MAX_TICKS = 50
_MIN_DECADES = 1.3
"""Minimum range of a logarithmic scale, in powers of ten; a smaller range gets a linear scale."""


@dataclass(frozen=True)
class Tick:
    value: float
    label: str


@dataclass(frozen=True)
class Scale:
    """A mapping from values between `low` and `high`, which differ, to coordinates between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def at(self, value: float) -> float:
        """Return the coordinate of a value; a value outside the scale gets the coordinate of the nearest end."""
        inside = min(max(value, self.low), self.high)
        if self.logarithmic:
            share = math.log(inside / self.low) / math.log(self.high / self.low)
        else:
            share = (inside - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def places(self, ends: tuple[float | None, float | None]) -> tuple[float, float]:
        """Return the coordinates of an interval's ends; an open end is at the end of the scale."""
        low, high = ends
        return self.start if low is None else self.at(low), self.end if high is None else self.at(high)

    def ticks(self, max_ticks: int = 6) -> list[Tick]:
        """Return ticks at round numbers inside the scale; a linear scale has at most `max_ticks`."""
        make_ticks = _log_ticks if self.logarithmic else _even_ticks
        return make_ticks(self.low, self.high, max_ticks)


def extent(values: Iterable[Any], *, low: float | None = None) -> tuple[float, float]:
    """Return a range of round numbers that includes all values and `low`; 0 to 1 if there are no values.

    If no value is less than `low`, the range starts exactly at `low`.
    """
    numbers = [number for value in (*values, low) if (number := drawable(value)) is not None]
    if not numbers:
        return 0.0, 1.0
    first, last = min(numbers), max(numbers)
    if first == last or last - first <= abs(last) * 1e-12:
        margin = abs(first) * 0.1 or 1.0
        first, last = first - (0 if first == low else margin), last + margin
    step = _step(last - first, 6)
    begin, end = math.floor(first / step + 1e-9) * step, math.ceil(last / step - 1e-9) * step
    return (first if low == first else begin), end


def decades(values: Iterable[Any]) -> tuple[float, float] | None:
    """Return the ends of a logarithmic scale, or None if the values are too close together or not all positive."""
    numbers = [number for value in values if (number := drawable(value)) is not None]
    if not numbers or min(numbers) <= 1e-12 or math.log10(max(numbers) / min(numbers)) < _MIN_DECADES:
        return None
    return min(numbers) / 1.6, max(numbers) * 1.6


def _step(span: float, max_ticks: int) -> float:
    """Return the smallest of ..., 0.5, 1, 2, 5, 10, ... that divides a span into at most `max_ticks` parts."""
    rough = span / max(max_ticks, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    return next((power * factor for factor in _STEPS if power * factor >= rough * (1 - 1e-9)), power * 10)


def _even_ticks(low: float, high: float, max_ticks: int) -> list[Tick]:
    step = _step(high - low, max_ticks)
    decimals = max(0, -math.floor(math.log10(step) + 1e-9))
    first, last = math.ceil(low / step - 1e-6), math.floor(high / step + 1e-6)
    count = min(last - first + 1, _MAX_TICKS)
    return [Tick(multiple * step, format_tick(multiple * step, decimals)) for multiple in range(first, first + count)]


def _log_ticks(low: float, high: float, max_ticks: int) -> list[Tick]:
    powers = range(math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9) + 1)
    factors = (1,) if len(powers) >= 3 else (1, 2, 5)
    values = [
        factor * 10.0**power
        for power in range(powers.start - 1, powers.stop + 1)
        for factor in factors
        if low <= factor * 10.0**power <= high
    ]
    stride = max(1, math.ceil(len(values) / max(max_ticks, 1)))
    return [
        Tick(value, format_tick(value, max(0, -math.floor(math.log10(value) + 1e-9)))) for value in values[::stride]
    ]
