"""Intervals of plain means: Wilson's for shares and for two values, otherwise Student's t if enough groups differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from runner.statistics.clustered_means import Interval
from runner.statistics.intervals import mean_interval, t_quantile
from runner.statistics.reporting_rules import NOTHING, IntervalRule, near_constant_reason

ONE_CLUSTER = "a single group of datapoints leaves the error open"
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Mean:
    """A mean over clusters. `stderr` is the clustered error; for `grouped` see `intervals.mean_interval`."""

    rule: IntervalRule
    value: float | None
    stderr: float | None
    n: int
    clusters: int
    grouped: bool = False

    def share_interval(self) -> tuple[Interval | None, str | None]:
        """Return the interval of a mean of zeros and ones, or the reason why it has none."""
        if self.value is None:
            return None, NOTHING
        low, high = mean_interval(
            self.value, self.stderr, self.n, self.clusters, proportion=True, grouped=self.grouped
        )  # fmt: skip
        reason = self.rule.missing_reason(self.clusters)
        if reason is not None or low is None or high is None:
            return None, reason or ONE_CLUSTER
        return (low, high), None

    def two_value_interval(self, ends: Interval) -> tuple[Interval | None, str | None]:
        """Return the interval of a mean of two values, from the share of the higher value."""
        if self.value is None:
            return None, NOTHING
        low, width = ends[0], ends[1] - ends[0]
        error = None if self.stderr is None else _round_to_bounds(self.stderr / width)
        share = Mean(
            self.rule, _round_to_bounds((self.value - low) / width), error, self.n, self.clusters, self.grouped
        )
        interval, reason = share.share_interval()
        return None if interval is None else (low + width * interval[0], low + width * interval[1]), reason

    def student_interval(self, by_cluster: Iterable[float]) -> tuple[Interval | None, str | None]:
        """Return the interval by Student's t of a mean of any values; `by_cluster` has the mean of each cluster."""
        if self.value is None:
            return None, NOTHING
        if self.stderr is None:
            return None, ONE_CLUSTER
        reason = near_constant_reason(self.clusters - max(Counter(by_cluster).values()))
        if reason := reason or self.rule.missing_reason(self.clusters):
            return None, reason
        half = t_quantile(self.clusters) * self.stderr
        return (self.value - half, self.value + half), None


def _round_to_bounds(share: float) -> float:
    """Return exactly 0 or 1 for a share that misses it by rounding: at these values Wilson's interval uses no error."""
    return float(round(share)) if abs(share - round(share)) < _ROUNDING else share


def two_ends(values: Collection[float], ends: Collection[float]) -> Interval | None:
    """Return the lower and higher of two ends if they differ and all values are one of them."""
    low, high = min(ends), max(ends)
    return (low, high) if low < high and set(values) <= {low, high} else None
