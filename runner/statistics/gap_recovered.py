"""Performance gap recovered (Burns et al. 2023, arXiv 2312.09390): (score - weak) / (strong - weak).

1 means as good as the strong system (the ceiling), 0 as bad as the weak system. All three systems have the same
datapoints, so this is a ratio of paired differences. Its interval is Fieller's (1954), with Student's t over groups.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.statistics.intervals import CONFIDENCE, t_quantile


@dataclass(frozen=True)
class GapRecovered:
    """The share of a performance gap that a system closes."""

    value: float | None
    low: float | None
    high: float | None
    groups: int
    reason: str | None = None
    """Why there is no value or no interval."""


def gap_recovered(gains: Sequence[float], gaps: Sequence[float]) -> GapRecovered:
    """Return sum(gains) / sum(gaps). For each group, a gain is score - weak, and a gap is strong - weak."""
    gain, gap = np.asarray(gains, dtype=float), np.asarray(gaps, dtype=float)
    groups, total = len(gap), math.fsum(gap)
    if total <= 0:
        return GapRecovered(None, None, None, groups, "the ceiling is not better than the weak system")
    value = math.fsum(gain) / total
    if groups < 2:
        return GapRecovered(value, None, None, groups, "a single group of datapoints leaves the error unknown")
    covariance = groups * np.cov(gain, gap)  # of the two sums
    quantile = t_quantile(groups, CONFIDENCE) ** 2
    a = total**2 - quantile * covariance[1, 1]
    b = value * total**2 - quantile * covariance[0, 1]
    c = (value * total) ** 2 - quantile * covariance[0, 0]
    if a <= 0:
        reason = "the gap between the ceiling and the weak system is not significant, so the interval is not estimable"
        return GapRecovered(value, None, None, groups, reason)
    half = math.sqrt(max(b * b - a * c, 0.0)) / a
    return GapRecovered(value, float(b / a - half), float(b / a + half), groups)
