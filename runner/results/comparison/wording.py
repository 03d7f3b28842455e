"""The verdict of a comparison in words. It follows the test, and says so if the interval disagrees."""

from __future__ import annotations

import math

from runner.base.text import decimal, p_value
from runner.results.metric_table import Metric
from runner.statistics.differences import Difference
from runner.statistics.sign_flip import ALPHA

DETECTABLE_TARGET = 0.1
"""The difference of shares that a comparison should be able to detect."""


def verdict(
    measure: Metric, base: str, other: str, effect: Difference, p: float | None, *, corrected: bool, paired: bool = True
) -> str:
    """Return which system is better and by how much, or that there is no evidence; `p` is after any correction.

    If `corrected`, p takes other comparisons into account, which the interval does not.
    """
    text = _describe_test(measure, base, other, effect, p, corrected=corrected, paired=paired)
    return text if paired else f"{text}; on other datapoints (unpaired)"


def _describe_test(
    measure: Metric, base: str, other: str, effect: Difference, p: float | None, *, corrected: bool, paired: bool
) -> str:
    size = difference_in_words(measure, base, other, effect)
    if p is None:
        return f"a single group of datapoints leaves the error unknown: {size}"
    if p > ALPHA:
        text = f"no evidence of a difference: {size}"
        if effect.low is not None and not _contains_zero(effect):
            reason = "p counts the other comparisons too" if corrected else "the test decides"
            text += f"; the interval leaves out 0, and p is {p_value(p)}: {reason}"
        if paired and (smallest_p := 2.0 ** (1 - effect.groups)) > ALPHA:
            return f"{text}; {effect.groups} groups of datapoints cannot tell: p is {p_value(smallest_p)} at best"
        return text + _describe_power(measure, effect)
    better = measure.better or 1
    winner, sign = (other, 1) if effect.value * better > 0 else (base, -1)
    margin = _with_interval(effect, measure, sign * better)
    text = f"{winner} is {'better' if measure.better else 'higher'} by {margin}"
    if effect.low is not None and _contains_zero(effect):
        text += f"; the interval holds 0, and p is {p_value(p)}: the test decides"
    return text


def difference_in_words(measure: Metric, base: str, other: str, effect: Difference) -> str:
    """Return `B minus A is 6 points [2, 10]`."""
    return f"{other} minus {base} is {_with_interval(effect, measure, 1)}"


def _contains_zero(effect: Difference) -> bool:
    assert effect.low is not None
    assert effect.high is not None
    return effect.low <= 0 <= effect.high


def _with_interval(effect: Difference, measure: Metric, sign: int) -> str:
    """Return `6 points [2, 10]`, for a difference or its opposite."""
    low, high = (effect.low, effect.high) if sign > 0 else (effect.high, effect.low)
    value = format_difference(sign * effect.value, measure, effect)
    if low is None or high is None:
        return value
    ends = (format_difference(sign * end, measure, effect, unit=False) for end in (low, high))
    return f"{value} [{', '.join(ends)}]"


def format_difference(value: float, measure: Metric, effect: Difference, *, unit: bool = True) -> str:
    """Return a difference in points of a hundred or in its own unit, with no more decimals than the interval allows."""
    scale = 100.0 if measure.is_share else 1.0
    half = None if effect.low is None or effect.high is None else (effect.high - effect.low) / 2 * scale
    if measure.is_share:
        decimals = 0 if half is None or half >= 2 else 1 if half >= 0.2 else 2
    else:
        decimals = 3 if not half else max(0, 1 - math.floor(math.log10(half)))
    text = decimal(value * scale, decimals)
    if not unit or not measure.is_share:
        return text
    return f"{text} point{'' if text in ('1', '-1') else 's'}"


def _describe_power(measure: Metric, effect: Difference) -> str:
    if effect.detectable is None:
        return "" if effect.stderr is None else "; underpowered: so few groups of datapoints can show no difference"
    smallest = format_difference(effect.detectable, measure, effect)
    if measure.is_share and effect.detectable > DETECTABLE_TARGET:
        return f"; underpowered: only differences of {smallest} or more would be detected with 80 % power"
    return f"; minimum detectable difference: {smallest} (80 % power)"
