"""Compute means from sums by cluster, so that memory does not grow with the number of rollouts."""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection
from dataclasses import dataclass, field

from runner.statistics.intervals import clustered_error


@dataclass
class ClusterSums:
    """Sums by cluster: enough for the mean, its clustered error and the population standard deviation."""

    positions: dict[str, int] = field(default_factory=dict)
    """The position of each cluster in `_sums`. The metrics of a run share this dictionary, to save memory."""
    values: set[float] = field(default_factory=set)
    """The distinct values. If there are more than two, some may be missing."""
    n: int = 0
    _sums: array[float] = field(default_factory=lambda: array("d"))
    """Three numbers for each position: the count of the values, their sum and their sum of squares."""
    _mean: tuple[int, float] | None = None
    """The number of values and their mean, cached since a sum over many clusters is slow."""

    def add(self, cluster: str, values: Collection[float]) -> None:
        """Add several values of one cluster, in this order."""
        self.n += len(values)
        if len(self.values) < 3:
            self.values.update(values)
        sums, start = self._sums, 3 * self.positions.setdefault(cluster, len(self.positions))
        if len(sums) <= start:
            sums.extend([0.0] * (start + 3 - len(sums)))
        for value in values:
            sums[start] += 1
            sums[start + 1] += value
            sums[start + 2] += value * value

    @property
    def clusters(self) -> list[tuple[float, float, float]]:
        """The count of the values, their sum and their sum of squares, for each cluster with values."""
        return [row for row in zip(self._sums[::3], self._sums[1::3], self._sums[2::3], strict=True) if row[0]]

    @property
    def by_cluster(self) -> list[float]:
        """The mean of each cluster."""
        return [total / count for count, total, _ in self.clusters]

    @property
    def mean(self) -> float | None:
        if self._mean is None or self._mean[0] != self.n:
            if not self.n:
                return None
            self._mean = self.n, math.fsum(self._sums[1::3]) / self.n
        return self._mean[1]

    @property
    def deviation(self) -> float | None:
        """The population standard deviation of the values."""
        mean = self.mean
        if mean is None:
            return None
        mean_square = math.fsum(self._sums[2::3]) / self.n
        return math.sqrt(max(mean_square - mean * mean, 0.0))

    @property
    def stderr(self) -> float | None:
        """The clustered standard error of the mean; None for a single cluster."""
        return clustered_error([(count, total) for count, total, _ in self.clusters], self.mean, self.n)
