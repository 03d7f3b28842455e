"""Intervals of plain means: Wilson's for shares and values of two kinds, else Student's t if enough groups differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from runner.statistics.clustered_means import Interval
from runner.statistics.intervals import interval
from runner.statistics.reporting_rules import NOTHING, IntervalRule, near_constant_reason

ONE_CLUSTER = "a single group of datapoints leaves the error open"
_ROUNDING = 1e-12


@dataclass(frozen=True)
class Mean:
    """A mean over clusters. `stderr` is the clustered error; `grouped` is as of `intervals.interval`."""

    rule: IntervalRule
    value: float | None
    stderr: float | None
    n: int
    clusters: int
    grouped: bool = False

    def of_share(self) -> tuple[Interval | None, str | None]:
        """Of values of 0 and 1: the interval, or why there is none."""
        if self.value is None:
            return None, NOTHING
        low, high = interval(
            self.value, self.stderr, self.n, self.clusters, proportion=True, grouped=self.grouped
        )  # fmt: skip
        reason = self.rule.missing_reason(self.clusters)
        if reason is not None or low is None or high is None:
            return None, reason or ONE_CLUSTER
        return (low, high), None

    def between(self, ends: Interval) -> tuple[Interval | None, str | None]:
        """Of values that are one of two: the interval of the share of the higher one, on their scale."""
        if self.value is None:
            return None, NOTHING
        bottom, width = ends[0], ends[1] - ends[0]
        error = None if self.stderr is None else _exact(self.stderr / width)
        share = Mean(self.rule, _exact((self.value - bottom) / width), error, self.n, self.clusters, self.grouped)
        found, reason = share.of_share()
        return None if found is None else (bottom + width * found[0], bottom + width * found[1]), reason

    def by_student(self, by_cluster: Iterable[float]) -> tuple[Interval | None, str | None]:
        """Of any values. `by_cluster`: the mean of each cluster."""
        if self.value is None:
            return None, NOTHING
        if self.stderr is None:
            return None, ONE_CLUSTER
        if reason := near_constant_reason(self.clusters - max(Counter(by_cluster).values())):
            return None, reason
        low, high = interval(self.value, self.stderr, self.n, self.clusters, proportion=False)
        assert low is not None
        assert high is not None
        return (low, high), None


def _exact(share: float) -> float:
    """0 and 1 where decimal fractions are off by their last bits: there Wilson's interval takes no error."""
    return float(round(share)) if abs(share - round(share)) < _ROUNDING else share


def two_ends(values: Collection[float], ends: Collection[float]) -> Interval | None:
    """The lower and the higher of two ends, where they differ and nothing else was seen."""
    low, high = min(ends), max(ends)
    return (low, high) if low < high and set(values) <= {low, high} else None
