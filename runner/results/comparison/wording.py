"""The verdict of a comparison in words. It follows the test, and says so if the interval disagrees."""

from __future__ import annotations

import math

from runner.base.text import decimal, p_value
from runner.results.metric_table import Metric
from runner.statistics.differences import Difference
from runner.statistics.sign_flip import ALPHA

SEEN = 0.1
"""The difference of shares that a comparison should be able to detect."""


def verdict(
    measure: Metric, base: str, other: str, found: Difference, p: float | None, *, corrected: bool, paired: bool = True
) -> str:
    """Return which system is better and by how much, or that there is no evidence; `p` is after any correction.

    If `corrected`, p takes other comparisons into account, which the interval does not.
    """
    said = _tested(measure, base, other, found, p, corrected=corrected, paired=paired)
    return said if paired else f"{said}; on other datapoints (unpaired)"


def _tested(
    measure: Metric, base: str, other: str, found: Difference, p: float | None, *, corrected: bool, paired: bool
) -> str:
    if p is None:
        return (
            f"a single group of datapoints leaves the error unknown: {difference_in_words(measure, base, other, found)}"
        )
    if p > ALPHA:
        said = f"no evidence of a difference: {difference_in_words(measure, base, other, found)}"
        if found.low is not None and not _contains_zero(found):
            why = "p counts the other comparisons too" if corrected else "the test decides"
            said += f"; the interval leaves out 0, and p is {p_value(p)}: {why}"
        if paired and (least := 2.0 ** (1 - found.groups)) > ALPHA:
            return f"{said}; {found.groups} groups of datapoints cannot tell: p is {p_value(least)} at best"
        return said + _too_few(measure, found)
    better = measure.better or 1
    winner, sign = (other, 1) if found.value * better > 0 else (base, -1)
    word = ("is better by" if measure.better else "is higher by") + f" {_span(found, measure, sign * better)}"
    said = f"{winner} {word}"
    if found.low is not None and _contains_zero(found):
        said += f"; the interval holds 0, and p is {p_value(p)}: the test decides"
    return said


def difference_in_words(measure: Metric, base: str, other: str, found: Difference) -> str:
    """Return `B less A is 6 points [2, 10]`."""
    return f"{other} less {base} is {_span(found, measure, 1)}"


def _contains_zero(found: Difference) -> bool:
    assert found.low is not None
    assert found.high is not None
    return found.low <= 0 <= found.high


def _span(found: Difference, measure: Metric, sign: int) -> str:
    """Return `6 points [2, 10]`, for a difference or its opposite."""
    low, high = (found.low, found.high) if sign > 0 else (found.high, found.low)
    value = told(sign * found.value, measure, found)
    if low is None or high is None:
        return value
    ends = (told(sign * end, measure, found, unit=False) for end in (low, high))
    return f"{value} [{', '.join(ends)}]"


def told(value: float, measure: Metric, found: Difference, *, unit: bool = True) -> str:
    """Return a difference in points of a hundred or in its own unit, with no more decimals than the interval allows."""
    scale = 100.0 if measure.is_share else 1.0
    half = None if found.low is None or found.high is None else (found.high - found.low) / 2 * scale
    if measure.is_share:
        decimals = 0 if half is None or half >= 2 else 1 if half >= 0.2 else 2
    else:
        decimals = 3 if not half else max(0, 1 - math.floor(math.log10(half)))
    shown = decimal(value * scale, decimals)
    if not unit or not measure.is_share:
        return shown
    return f"{shown} point{'' if shown in ('1', '-1') else 's'}"


def _too_few(measure: Metric, found: Difference) -> str:
    if found.detectable is None:
        return "" if found.stderr is None else "; underpowered: so few groups of datapoints can show no difference"
    least = told(found.detectable, measure, found)
    if not measure.is_share:
        return f"; minimum detectable difference: {least} (80 % power)"
    if found.detectable > SEEN:
        return f"; underpowered: only differences of {least} or more would be detected with 80 % power"
    return f"; minimum detectable difference: {least} (80 % power)"
