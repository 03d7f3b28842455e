"""Functions that describe the results of a comparison in words."""

from __future__ import annotations

import math
from dataclasses import replace

from runner.base.text import decimal, p_statement, p_value
from runner.results.metric_definitions import Metric
from runner.statistics.differences import Difference
from runner.statistics.equivalence import Equivalence
from runner.statistics.significance import ALPHA

DETECTABLE_TARGET = 0.1
"""The difference of shares that a comparison should be able to detect."""


def verdict(
    measure: Metric, base: str, other: str, effect: Difference, p: float | None, *, family: int = 1, paired: bool = True
) -> str:
    """Return which system is better and by how much, or that there is no evidence.

    If there are several comparisons (`family`), p and the interval of `effect` are adjusted for their number.
    """
    text = _describe_test(measure, base, other, effect, p, paired=paired)
    if family > 1 and p is not None:
        text += f"; interval and p-value are adjusted for {family} comparisons (Holm)"
    return text if paired else f"{text}; on other datapoints (unpaired)"


def _describe_test(measure: Metric, base: str, other: str, effect: Difference, p: float | None, *, paired: bool) -> str:
    size = difference_in_words(measure, base, other, effect)
    is_of_order = measure.order_measure is not None
    if p is None and is_of_order and (reason := measure.rule.missing_reason(effect.groups)) is not None:
        return f"no test: {reason}: {size}"
    if p is None:
        return f"a single group of datapoints leaves the error unknown: {size}"
    if p > ALPHA:
        text = f"no evidence of a difference: {size}"
        if is_of_order:
            return text
        if paired and (smallest_p := 2.0 ** (1 - effect.groups)) > ALPHA:
            return f"{text}; {effect.groups} groups of datapoints cannot tell: p is {p_value(smallest_p)} at best"
        return text + _describe_power(measure, effect)
    better = measure.better or 1
    winner, sign = (other, 1) if effect.value * better > 0 else (base, -1)
    return f"{winner} is {'better' if measure.better else 'higher'} by {_with_interval(effect, measure, sign * better)}"


def describe_equivalence(measure: Metric, difference: Difference, equivalence: Equivalence) -> str:
    """Return whether two systems are equivalent within a margin, with the p-value and the 90 % interval."""
    margin = format_difference(equivalence.margin, measure, difference)
    if equivalence.low is None or equivalence.high is None:
        return f"equivalence within {margin} cannot be tested: the error of the difference is unknown"
    interval = replace(difference, low=equivalence.low, high=equivalence.high)
    low, high = (format_difference(end, measure, interval, unit=False) for end in (equivalence.low, equivalence.high))
    conclusion = "equivalent" if equivalence.is_shown else "not shown to be equivalent"
    p = "" if equivalence.p is None else f"{p_statement(equivalence.p)}; "
    return f"{conclusion} within {margin} (two one-sided tests: {p}90 % CI [{low}, {high}])"


def difference_in_words(measure: Metric, base: str, other: str, effect: Difference) -> str:
    """Return a text such as `B minus A is 6 points [2, 10]`."""
    return f"{other} minus {base} is {_with_interval(effect, measure, 1)}"


def _with_interval(effect: Difference, measure: Metric, sign: int) -> str:
    """Return a text such as `6 points [2, 10]`, for the difference times `sign`."""
    low, high = (effect.low, effect.high) if sign > 0 else (effect.high, effect.low)
    value = format_difference(sign * effect.value, measure, effect)
    if low is None or high is None:
        return value
    ends = (format_difference(sign * end, measure, effect, unit=False) for end in (low, high))
    return f"{value} [{', '.join(ends)}]"


def format_difference(value: float, measure: Metric, effect: Difference, *, unit: bool = True) -> str:
    """Return a difference in percentage points or in the measure's unit.

    The width of the interval of `effect` determines the number of decimals.
    """
    scale = 100.0 if measure.is_share else 1.0
    half_width = None if effect.low is None or effect.high is None else (effect.high - effect.low) / 2 * scale
    if measure.is_share:
        decimals = 0 if half_width is None or half_width >= 2 else 1 if half_width >= 0.2 else 2
    else:
        decimals = 3 if not half_width else max(0, 1 - math.floor(math.log10(half_width)))
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
