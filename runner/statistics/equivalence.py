"""Equivalence of two systems on the same datapoints: two one-sided tests (Schuirmann 1987).

Two systems are equivalent within a margin if both tests reject at 5 %, that the difference is at most -margin and that
it is at least the margin. The tests are Student's, over groups. They err too often if few groups differ, or if the
differences are skewed. So the 90 % interval of the difference must be within the margin too. It allows for few groups
that differ, is extended in the direction of the skewness (Hall 1992), and contains Student's 90 % interval. The p-value
is the larger of Student's and the smallest level at which the interval is within the margin. So the interval is within
the margin exactly if p is at most 5 %.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.statistics.differences import paired_difference
from runner.statistics.intervals import student_tail, t_quantile
from runner.statistics.significance import ALPHA

_HALVINGS = 40


@dataclass(frozen=True)
class Equivalence:
    """The result of two one-sided tests."""

    margin: float
    p: float | None
    """The larger of Student's p-value and the smallest level at which the interval is within the margin.

    None if it is unknown because no groups differ or there is a single group.
    """
    low: float | None
    """The ends of the interval at 90 %."""
    high: float | None
    is_shown: bool
    """Whether the systems are shown to be equivalent."""


def equivalence_test(
    differences: Sequence[float], sizes: Sequence[float], margin: float, bound: float | None, step: float = 0.0
) -> Equivalence:
    """Test whether the mean of differences by group is within `margin` of 0; see `paired_difference`."""

    def interval(alpha: float) -> tuple[float, float] | None:
        level = 1 - 2 * alpha
        difference = paired_difference(differences, sizes, bound, step, level)
        if difference.low is None or difference.high is None:
            return None
        shift = _skewness_shift(differences, sizes, level)
        half = t_quantile(len(differences), level) * _student_error(differences, sizes)
        limit = math.inf if bound is None else max(bound, margin)
        low = min(difference.low + min(shift, 0.0), difference.value - half)
        high = max(difference.high + max(shift, 0.0), difference.value + half)
        return max(low, -limit), min(high, limit)

    def is_inside(alpha: float) -> bool:
        ends = interval(alpha)
        return ends is not None and -margin < ends[0] and ends[1] < margin

    low, high = interval(ALPHA) or (None, None)
    student, is_shown = student_p(differences, sizes, margin), is_inside(ALPHA)
    if low is None or student is None:
        return Equivalence(margin, None, low, high, is_shown)
    smallest, largest = (0.0, ALPHA) if is_shown else (ALPHA, 0.5)
    for _ in range(_HALVINGS):
        middle = (smallest + largest) / 2
        smallest, largest = (smallest, middle) if is_inside(middle) else (middle, largest)
    return Equivalence(margin, max(student, largest), low, high, is_shown)


def student_p(differences: Sequence[float], sizes: Sequence[float], margin: float) -> float | None:
    """Return the p-value of Student's two one-sided tests; None for a single group, or if no groups differ."""
    count, stderr = len(differences), _student_error(differences, sizes)
    if stderr == 0:
        return None
    value = math.fsum(d * n for d, n in zip(differences, sizes, strict=True)) / math.fsum(sizes)
    return max(student_tail((margin + sign * value) / stderr, count - 1) for sign in (-1, 1))


def _student_error(differences: Sequence[float], sizes: Sequence[float]) -> float:
    """Return the standard error of the mean difference; 0 for a single group."""
    d, weights = np.asarray(differences, dtype=float), np.asarray(sizes, dtype=float)
    weights, count = weights / weights.mean(), len(d)
    squares = math.fsum((weights * (d - math.fsum(weights * d) / count)) ** 2)
    return 0.0 if count < 2 else math.sqrt(squares / (count - 1) / count)


def _skewness_shift(differences: Sequence[float], sizes: Sequence[float], level: float) -> float:
    """Return how far an interval end moves because the differences are skewed (Hall 1992)."""
    d, weights = np.asarray(differences, dtype=float), np.asarray(sizes, dtype=float)
    weights, count = weights / weights.mean(), len(d)
    value = math.fsum(weights * d) / count
    deviation = math.sqrt(math.fsum((weights * (d - value)) ** 2) / (count - 1))
    if not deviation:
        return 0.0
    skewness = math.fsum((weights * (d - value)) ** 3) / count / deviation**3
    return deviation * skewness * (1 + 2 * t_quantile(count, level) ** 2) / (6 * count)
