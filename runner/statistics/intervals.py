"""Intervals for means over clusters: Wilson 1927 at the effective sample size for proportions, else Student's t."""

from __future__ import annotations

import math
import sys
from collections.abc import Collection
from importlib import import_module
from statistics import NormalDist

CONFIDENCE = 0.95
SPECIAL_FUNCTIONS = "scipy.special._ufuncs"
"""The module with the functions of `scipy.special`, which a command may have loaded without the rest of the package."""


def mean_interval(
    mean: float | None,
    stderr: float | None,
    n: int,
    clusters: int,
    *,
    proportion: bool,
    grouped: bool = False,
    level: float = CONFIDENCE,
) -> tuple[float | None, float | None]:
    """Return a confidence interval for a mean over clusters; (None, None) if a single cluster leaves the error unknown.

    A proportion has Wilson's interval at n_eff = min(n, p(1-p)/SE^2) * (z/t)^2; if all values are equal, n_eff is the
    number of clusters. With `grouped`, a cluster has several datapoints that may balance each other, such as the right
    and the wrong version of a program if the judge is biased; then n_eff may exceed n.
    """
    if mean is None or (stderr is None and not (proportion and clusters)):
        return None, None
    if proportion:
        return wilson_interval(mean, stderr, math.inf if grouped else n, clusters, level)
    assert stderr is not None
    half = t_quantile(clusters, level) * stderr
    return mean - half, mean + half


def wilson_interval(
    p: float, stderr: float | None, n: float, clusters: float, level: float = CONFIDENCE
) -> tuple[float, float]:
    """Return Wilson's interval of a proportion. The effective sample size is at most `n`; without error, `clusters`."""
    z = NormalDist().inv_cdf(0.5 + level / 2)
    size = min(n, p * (1 - p) / stderr**2) * (z / t_quantile(clusters, level)) ** 2 if stderr else float(clusters)
    centre = (p + z * z / (2 * size)) / (1 + z * z / size)
    half = z / (1 + z * z / size) * math.sqrt(p * (1 - p) / size + z * z / (4 * size * size))
    # Rounding must not move the ends 0 and 1.
    return (0.0 if p == 0 else max(centre - half, 0.0)), (1.0 if p == 1 else min(centre + half, 1.0))


def clustered_error(sums: Collection[tuple[float, float]], mean: float | None, n: float) -> float | None:
    """Return the clustered standard error of a mean of n values, from the count and the sum of each cluster.

    It is sqrt(G/(G-1) * sum over clusters of (sum of residuals)^2) / n; None for a single cluster.
    """
    if mean is None or len(sums) < 2:
        return None
    residuals = math.fsum((total - count * mean) ** 2 for count, total in sums)
    return math.sqrt(len(sums) / (len(sums) - 1) * residuals) / n


def load_scipy() -> None:
    """Load SciPy before the games start, so that an import error costs no money."""
    t_quantile(2)


def t_quantile(clusters: float, level: float = CONFIDENCE) -> float:
    """Return the quantile of Student's t for an interval over this many clusters."""
    loaded = getattr(sys.modules.get(SPECIAL_FUNCTIONS), "stdtrit", None)
    stdtrit = loaded or import_module("scipy.special").stdtrit
    return float(stdtrit(clusters - 1, 0.5 + level / 2))


def student_tail(t: float, degrees: float) -> float:
    """Return the probability that Student's t is at least `t`."""
    from scipy.special import stdtr

    return float(stdtr(degrees, -t))


def variance_factors(groups: float) -> tuple[float, float]:
    """Return the factors that turn a variance of this many normal scores into its interval (chi-squared)."""
    from scipy.special import chdtri

    degrees, tail = groups - 1, (1 - CONFIDENCE) / 2
    return degrees / float(chdtri(degrees, tail)), degrees / float(chdtri(degrees, 1 - tail))
