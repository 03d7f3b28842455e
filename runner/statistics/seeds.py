"""Seeds as repeats of one system: their pooled mean, the spread between them, and the spread to expect by chance.

The clustered error follows Miller 2024 (arXiv 2411.00640). The expected spread is that of a sum of independent
clusters, each with the variance between its own seeds.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import stdev

from runner.statistics.intervals import clustered_error, mean_interval

Sums = Mapping[str, tuple[int, float]]
"""The rollouts of one seed by cluster: their number, and the sum of their values."""


@dataclass(frozen=True)
class PooledMean:
    """A mean over the rollouts of all seeds, clustered by group over all of them."""

    value: float | None
    stderr: float | None
    ci_low: float | None
    ci_high: float | None
    n: int
    clusters: int
    differing: int
    """The number of clusters whose mean is not the most frequent one."""
    between: float | None
    """The standard deviation of the seeds' means; None for fewer than two seeds."""
    within: float | None
    """The expected standard deviation if seeds differ only by chance; None if no cluster has two seeds."""


def pool_seeds(seeds: Sequence[Sums], *, proportion: bool, grouped: bool = False) -> PooledMean:
    """Return the mean over all seeds. For `proportion` and `grouped`, see `intervals.mean_interval`."""
    sums: dict[str, tuple[int, float]] = {}
    for seed in seeds:
        for group, (count, total) in seed.items():
            previous = sums.get(group, (0, 0.0))
            sums[group] = previous[0] + count, previous[1] + total
    n = sum(count for count, _ in sums.values())
    mean = math.fsum(total for _, total in sums.values()) / n if n else None
    stderr = clustered_error(sums.values(), mean, n)
    low, high = mean_interval(mean, stderr, n, len(sums), proportion=proportion, grouped=grouped)
    cluster_means = [total / count for count, total in sums.values() if count]
    means = [math.fsum(total for _, total in seed.values()) / count for seed in seeds if (count := _count(seed))]
    return PooledMean(
        mean, stderr, low, high, n, len(sums), len(sums) - max(Counter(cluster_means).values(), default=0),
        stdev(means) if len(means) > 1 else None,
        _expected_spread(seeds) if len(means) > 1 else None,
    )  # fmt: skip


def _count(sums: Sums) -> int:
    return sum(count for count, _ in sums.values())


def _expected_spread(seeds: Sequence[Sums]) -> float | None:
    """Return the standard deviation of a seed's mean if seeds differ only by chance, from the clusters of all seeds.

    If the seeds share no cluster, because they have different datapoints, it is the clustered error of a seed's mean.
    """
    shared = set.intersection(*(set(seed) for seed in seeds))
    if not shared:
        errors = [
            clustered_error(seed.values(), math.fsum(total for _, total in seed.values()) / count, count)
            for seed in seeds
            if (count := _count(seed))
        ]
        squared_errors = [error**2 for error in errors if error is not None]
        return math.sqrt(math.fsum(squared_errors) / len(squared_errors)) if squared_errors else None
    n = sum(seed[group][0] for seed in seeds for group in shared) / len(seeds)
    variances = (stdev(seed[group][1] for seed in seeds) ** 2 for group in sorted(shared))
    return math.sqrt(math.fsum(variances)) / n
