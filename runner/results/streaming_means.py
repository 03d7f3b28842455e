"""Compute means of streamed rollouts from sums by cluster, so that memory does not grow with the rollouts."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass, field

from runner.statistics.intervals import clustered_error


@dataclass
class ClusterSums:
    """Sums by cluster: enough for the mean, its clustered error and the population standard deviation."""

    clusters: dict[str, list[float]] = field(default_factory=dict)
    values: set[float] = field(default_factory=set)
    """The distinct values. If there are more than two, it has at least three of them."""
    n: int = 0
    _mean: tuple[int, float] | None = None
    """The number of values and their mean, cached since a sum over many clusters is slow."""

    def add(self, cluster: str, values: Collection[float]) -> None:
        """Add several values of one cluster, in this order."""
        self.n += len(values)
        if len(self.values) < 3:
            self.values.update(values)
        row = self.clusters.get(cluster)
        if row is None:
            row = self.clusters[cluster] = [0.0, 0.0, 0.0]
        for value in values:
            row[0] += 1
            row[1] += value
            row[2] += value * value

    @property
    def by_cluster(self) -> list[float]:
        """The mean of each cluster."""
        return [row[1] / row[0] for row in self.clusters.values()]

    @property
    def mean(self) -> float | None:
        if self._mean is None or self._mean[0] != self.n:
            if not self.n:
                return None
            self._mean = self.n, math.fsum(row[1] for row in self.clusters.values()) / self.n
        return self._mean[1]

    @property
    def deviation(self) -> float | None:
        """The population standard deviation over rollouts."""
        mean = self.mean
        if mean is None:
            return None
        square = math.fsum(row[2] for row in self.clusters.values()) / self.n
        return math.sqrt(max(square - mean * mean, 0.0))

    @property
    def stderr(self) -> float | None:
        """The clustered standard error of the mean; None for a single cluster."""
        return clustered_error([(count, total) for count, total, _ in self.clusters.values()], self.mean, self.n)
