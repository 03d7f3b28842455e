"""Means over clusters that store each cluster's contribution to their error, so that means can be combined.

The influence of a mean has the residual sum of each cluster. The standard error of any smooth function of means follows
from the same combination of influences (linearization, the first step of the delta method). With equal clusters it is
the clustered error of a regression on a constant, with the factor G/(G-1).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.statistics.intervals import wilson_interval

Floats = npt.NDArray[np.floating[Any]]
Codes = npt.NDArray[np.integer[Any]]

Interval = tuple[float, float]

_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Share:
    """A mean of values from 0 to 1, or of differences of such values.

    `influence` has one entry for each cluster of the run, 0 if the cluster has no value. `cap` is the upper limit of
    the effective sample size; infinite if datapoints of one cluster may balance each other.
    """

    value: float
    influence: Floats
    n: int
    clusters: int
    cap: float = math.inf

    @property
    def stderr(self) -> float | None:
        """The clustered standard error; None for a single cluster."""
        if self.clusters < 2:
            return None
        error = math.sqrt(self.clusters / (self.clusters - 1) * math.fsum(self.influence**2))
        return error if error > _ROUNDING else 0.0

    @property
    def interval(self) -> Interval:
        """Wilson's interval at the effective sample size."""
        return wilson_interval(self.value, self.stderr, self.cap, self.clusters)

    def as_quantity(self, plays: int | None = None) -> Quantity:
        """Return the mean with its interval; `plays` if it depends on how often datapoints were played."""
        return Quantity(self.value, self.stderr, self.interval, self.n, self.clusters, plays=plays)

    def correlation(self, other: Share) -> float:
        """Return the correlation of the two means' errors, from the clusters of both; 0 if one has no error."""
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
    """The number of clusters; for a quantity that needs right and wrong solutions, those of the rarer label."""
    reason: str | None = None
    """Why there is no value, or why an end of the interval is open."""
    plays: int | None = None
    """The plays of each datapoint, for a number that depends on them."""

    def to_json(self) -> dict[str, object]:
        low, high = self.interval or (None, None)
        return {
            "value": self.value, "ci_low": low, "ci_high": high, "n": self.n, "groups": self.clusters,
            "reason": self.reason,
        }  # fmt: skip

    def rescaled(self, scale: float, shift: float = 0.0) -> Quantity:
        """Return `scale` times the number, plus `shift`."""
        if self.value is None:
            return self
        ends = sorted(shift + scale * end for end in self.interval or ())
        stderr = None if self.stderr is None else abs(scale) * self.stderr
        interval = (ends[0], ends[1]) if ends else None
        return replace(self, value=shift + scale * self.value, stderr=stderr, interval=interval)


def difference(first: Share, second: Share) -> Quantity:
    """Return the difference of two shares."""
    error, interval = difference_error(first, second), difference_interval(first, second)
    return Quantity(first.value - second.value, error, interval, *combined_counts(first, second))


def combined_counts(first: Share, second: Share) -> tuple[int, int]:
    """Return the number of values of two shares together, and the smaller number of clusters."""
    return first.n + second.n, min(first.clusters, second.clusters)


def mean_share(
    values: Floats, clusters: Codes, total: int, *, cap: float | None = None, weights: Floats | None = None
) -> Share | None:
    """Return the mean of values; None without values. `clusters` has a number below `total` for each value."""
    n = len(values)
    if not n:
        return None
    weights = np.ones(n) if weights is None else weights
    size = float(weights.sum())
    value = math.fsum(weights * values) / size
    influence = np.bincount(clusters, weights=weights * (values - value), minlength=total) / size
    present_clusters = int(np.count_nonzero(np.bincount(clusters, minlength=total)))
    return Share(value, influence, n, present_clusters, math.inf if cap is None else cap)


def difference_interval(first: Share, second: Share) -> Interval:
    """Return the interval of `first - second`, from both intervals and the correlation of the errors."""
    correlation = first.correlation(second)
    return mover_interval((first.value, *first.interval), (second.value, *second.interval), correlation)


def difference_error(first: Share, second: Share, scale: float = 1.0, slopes: Interval = (1.0, 1.0)) -> float | None:
    """Return the clustered standard error of a difference; None if one of the shares has a single cluster.

    `slopes` are the derivatives of functions of the two means at their values (the delta method).
    """
    if min(first.clusters, second.clusters) < 2:
        return None
    influence = slopes[0] * first.influence - slopes[1] * second.influence
    cluster_count = int((abs(first.influence) + abs(second.influence) > 0).sum())
    return scale * math.sqrt(max(cluster_count, 2) / max(cluster_count - 1, 1) * math.fsum(influence**2))


def mover_interval(
    first: tuple[float, float, float], second: tuple[float, float, float], correlation: float
) -> Interval:
    """Return an interval of first - second, each given as value, low and high.

    The method is MOVER, "method of variance estimates recovery" (Zou and Donner 2008). It takes the distance from a
    value to its limit as the error on that side. So the interval is as asymmetric as the two intervals are, and it has
    a width even if all games are right or all are wrong.
    """
    (a, a_low, a_high), (b, b_low, b_high) = first, second

    def distance(x: float, y: float) -> float:
        if math.isinf(x) or math.isinf(y):
            return math.inf
        return math.sqrt(max(x * x + y * y - 2 * correlation * x * y, 0.0))

    middle = a - b
    return middle - distance(a - a_low, b_high - b), middle + distance(a_high - a, b - b_low)
