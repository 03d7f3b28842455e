"""Measures of the order of games, such as a true positive rate, and differences of two monitors by them.

A comparison needs intervals of any level. The interval of a difference combines the intervals of both measures by MOVER
(Zou and Donner 2008). The correlation of their errors follows from the contributions of clusters. The p-value belongs
to the interval that just reaches 0, so interval and test always agree.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from runner.statistics.clustered_means import Floats, Interval, Quantity, Share, mover_interval
from runner.statistics.differences import Difference
from runner.statistics.intervals import CONFIDENCE, wilson_interval

_SMALLEST_ALPHA = 1e-12
_HALVINGS = 20


@dataclass(frozen=True, eq=False)
class OrderMeasure:
    """A measure of the order of games, with what a comparison with another monitor needs."""

    value: float
    influence: Floats
    """The contribution of each cluster to the error."""
    n: int
    clusters: int
    """The number of clusters with the rarer label."""
    interval_at: Callable[[float], Interval]
    """Returns the interval of a confidence level, for at least two clusters."""

    @classmethod
    def from_share(cls, share: Share) -> OrderMeasure:
        return cls(
            share.value, share.influence, share.n, share.clusters,
            lambda level: wilson_interval(share.value, share.stderr, share.cap, share.clusters, level),
        )  # fmt: skip

    @property
    def stderr(self) -> float | None:
        if self.clusters < 2:
            return None
        return math.sqrt(self.clusters / (self.clusters - 1) * math.fsum(self.influence**2))

    def as_quantity(self) -> Quantity:
        interval = None if self.clusters < 2 else self.interval_at(CONFIDENCE)
        return Quantity(self.value, self.stderr, interval, self.n, self.clusters)


@dataclass(frozen=True, eq=False)
class MeasureDifference:
    """The second of two measures of order minus the first, with intervals by MOVER (Zou and Donner 2008).

    With `is_paired`, both are about the same clusters.
    """

    first: OrderMeasure
    second: OrderMeasure
    is_paired: bool
    has_interval: bool = True

    @property
    def correlation(self) -> float:
        """The correlation of the errors, from the contributions of the clusters."""
        first, second = self.first.influence, self.second.influence
        scale = math.sqrt(math.fsum(first**2) * math.fsum(second**2)) if self.is_paired else 0.0
        return min(1.0, max(-1.0, math.fsum(first * second) / scale)) if scale else 0.0

    def at(self, level: float) -> Difference:
        """Return the difference with the interval of a level; without interval if there are too few clusters."""
        value, clusters = self.second.value - self.first.value, min(self.first.clusters, self.second.clusters)
        if not self.has_interval:
            return Difference(value, None, None, None, None, clusters)
        errors = [measure.stderr or 0.0 for measure in (self.first, self.second)]
        variance = errors[0] ** 2 + errors[1] ** 2 - 2 * self.correlation * errors[0] * errors[1]
        low, high = self._interval_at(level)
        return Difference(value, math.sqrt(max(variance, 0.0)), low, high, None, clusters)

    def p_value(self) -> float | None:
        """Return the smallest alpha whose interval, of the level 1 - alpha, excludes 0; None without an interval."""
        if not self.has_interval:
            return None
        low, high = math.log(_SMALLEST_ALPHA), 0.0
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            ends = self._interval_at(1 - math.exp(middle))
            low, high = (middle, high) if ends[0] <= 0 <= ends[1] else (low, middle)
        return math.exp(high)

    def _interval_at(self, level: float) -> Interval:
        second, first = ((m.value, *m.interval_at(level)) for m in (self.second, self.first))
        return mover_interval(second, first, self.correlation)
