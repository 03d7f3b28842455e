"""Means over clusters that keep what each cluster adds to their error, so that they can be put together.

A mean's influence is what each cluster's residuals come to: the standard error of any smooth function of means follows
from the same sum of influences (linearisation, the first step of the delta method). With equal clusters it is the
clustered error of a regression on a constant, with the factor G/(G-1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.statistics.intervals import wilson

Floats = npt.NDArray[np.floating[Any]]
Codes = npt.NDArray[np.integer[Any]]

Interval = tuple[float, float]

_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Share:
    """A mean of values from 0 to 1, or of differences of such values.

    `influence`: by cluster, of all clusters that there are; 0 where a cluster has no value. `cap`: what the effective
    sample size cannot be more than; infinite where datapoints of one cluster may balance each other.
    """

    value: float
    influence: Floats
    n: int
    clusters: int
    cap: float = math.inf

    @property
    def stderr(self) -> float | None:
        """None for a single cluster."""
        if self.clusters < 2:
            return None
        error = math.sqrt(self.clusters / (self.clusters - 1) * math.fsum(self.influence**2))
        return error if error > _ROUNDING else 0.0

    @property
    def interval(self) -> Interval:
        """Wilson's at the effective sample size."""
        return wilson(self.value, self.stderr, self.cap, self.clusters)

    def as_quantity(self, plays: int | None = None) -> Quantity:
        """Return the mean with its interval; `plays` if it depends on how often datapoints were played."""
        return Quantity(self.value, self.stderr, self.interval, self.n, self.clusters, plays=plays)

    def correlation(self, other: Share) -> float:
        """Of the two means' errors, from the clusters that both have; 0 where one has no error."""
        scale = math.sqrt(math.fsum(self.influence**2) * math.fsum(other.influence**2))
        return min(1.0, max(-1.0, math.fsum(self.influence * other.influence) / scale)) if scale else 0.0


@dataclass(frozen=True, eq=False)
class Quantity:
    """A number with its error and interval, before a rule decides whether the interval is reported."""

    value: float | None
    stderr: float | None
    interval: Interval | None
    """An end is infinite if it is open."""
    n: int
    clusters: int
    """Those of the rarer label, for a number of right and of wrong solutions."""
    reason: str | None = None
    """Why there is no value, or why an end of the interval is open."""
    plays: int | None = None
    """The plays of each datapoint, for a number that depends on them."""


def difference(first: Share, second: Share) -> Quantity:
    """Return the difference of two shares."""
    interval = difference_interval(first, second)
    return Quantity(first.value - second.value, difference_error(first, second), interval, *counts_of(first, second))


def counts_of(first: Share, second: Share) -> tuple[int, int]:
    """Return the values behind two shares together, and the clusters of the one with fewer."""
    return first.n + second.n, min(first.clusters, second.clusters)


def share(values: Floats, clusters: Codes, total: int, *, cap: float | None = None) -> Share | None:
    """The mean of these values; None where there is none. `clusters`: of each, a number below `total`."""
    n = len(values)
    if not n:
        return None
    value = math.fsum(values) / n
    influence = np.bincount(clusters, weights=values - value, minlength=total) / n
    present = int(np.count_nonzero(np.bincount(clusters, minlength=total)))
    return Share(value, influence, n, present, math.inf if cap is None else cap)


def difference_interval(first: Share, second: Share, scale: float = 1.0) -> Interval:
    """Of `scale * (first - second)`, from the interval of each and the correlation of their errors (`recovered`)."""
    low, high = recovered((first.value, *first.interval), (second.value, *second.interval), first.correlation(second))
    return scale * low, scale * high


def difference_error(first: Share, second: Share, scale: float = 1.0, slopes: Interval = (1.0, 1.0)) -> float | None:
    """The clustered standard error of a difference; None where one has a single cluster.

    `slopes`: of functions of the two means, the derivatives at their values (the delta method).
    """
    if min(first.clusters, second.clusters) < 2:
        return None
    influence = slopes[0] * first.influence - slopes[1] * second.influence
    count = int((abs(first.influence) + abs(second.influence) > 0).sum())
    return scale * math.sqrt(max(count, 2) / max(count - 1, 1) * math.fsum(influence**2))


def recovered(first: tuple[float, float, float], second: tuple[float, float, float], correlation: float) -> Interval:
    """An interval of first - second, each given as value, low and high; Zou and Donner 2008 (MOVER).

    The distances from a value to its own limits stand for its error on that side, so that the interval is as lopsided
    as theirs are, and has a width where all is right or all is wrong.
    """
    (a, a_low, a_high), (b, b_low, b_high) = first, second

    def distance(mine: float, theirs: float) -> float:
        if math.isinf(mine) or math.isinf(theirs):
            return math.inf
        return math.sqrt(max(mine * mine + theirs * theirs - 2 * correlation * mine * theirs, 0.0))

    middle = a - b
    return middle - distance(a - a_low, b_high - b), middle + distance(a_high - a, b - b_low)
