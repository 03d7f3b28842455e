"""Equivalence of two systems on the same datapoints: two one-sided tests (Schuirmann 1987).

Two systems are equivalent within a margin if both tests reject at 5 %, that the difference is at most -margin and that
it is at least the margin. The tests are Student's, over groups. They err too often if few groups differ, or if the
differences are skewed. So the 90 % interval of the difference must be within the margin too. It allows for few groups
that differ, and is extended in the direction of the skewness (Hall 1992).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.statistics.differences import paired_difference
from runner.statistics.intervals import t_quantile
from runner.statistics.sign_flip import ALPHA


@dataclass(frozen=True)
class Equivalence:
    """The result of two one-sided tests."""

    margin: float
    p: float | None
    """The larger of the two p-values; None if it is unknown because no groups differ or there is a single group."""
    low: float | None
    """The ends of the interval at 90 %."""
    high: float | None
    is_shown: bool
    """Whether the systems are shown to be equivalent."""


def equivalence_test(
    differences: Sequence[float], sizes: Sequence[float], margin: float, bound: float | None, step: float = 0.0
) -> Equivalence:
    """Test whether the mean of differences by group is within `margin` of 0; see `paired_difference`."""
    difference = paired_difference(differences, sizes, bound, step, level=1 - 2 * ALPHA)
    d, n = np.asarray(differences, dtype=float), np.asarray(sizes, dtype=float)
    count = len(d)
    weights = n / n.mean()
    squares = math.fsum((weights * (d - difference.value)) ** 2)
    if difference.low is None or difference.high is None or squares == 0:
        return _conclude(margin, None, difference.low, difference.high)
    deviation = math.sqrt(squares / (count - 1))
    stderr = deviation / math.sqrt(count)
    p = max(_upper_tail((margin + sign * difference.value) / stderr, count - 1) for sign in (-1, 1))
    skewness = math.fsum((weights * (d - difference.value)) ** 3) / count / deviation**3
    shift = deviation * skewness * (1 + 2 * t_quantile(count, 1 - 2 * ALPHA) ** 2) / (6 * count)
    return _conclude(margin, p, difference.low + min(shift, 0.0), difference.high + max(shift, 0.0))


def _conclude(margin: float, p: float | None, low: float | None, high: float | None) -> Equivalence:
    is_inside = low is not None and high is not None and -margin < low and high < margin
    return Equivalence(margin, p, low, high, is_inside and (p is None or p <= ALPHA))


def _upper_tail(t: float, degrees: float) -> float:
    from scipy.special import stdtr

    return float(stdtr(degrees, -t))
