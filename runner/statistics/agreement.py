"""Agreement between two judges of the same debates: the share of equal verdicts, and Cohen's kappa (Cohen 1960).

Kappa is 0 if the judges agree as often as independent judges with the same frequencies of verdicts, and 1 if they
always agree. Its standard error follows from the errors of the frequencies (the delta method), summed by cluster. Its
interval comes from the posterior distribution of the table of verdicts, with a prior of `PRIOR` debates spread evenly
over the cells. The number of debates is reduced if the debates of a group resemble each other (the design effect), or
if there are few groups. An interval from the standard error would cover the true value only 89 to 92 % of the time if
nearly all verdicts are equal, because kappa then depends on a few debates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np

from runner.statistics.clustered_means import Codes, Floats, Interval, Quantity, Share, mean_share
from runner.statistics.intervals import CONFIDENCE, t_quantile

PRIOR = 1.4
"""The number of debates that the prior is worth.

With fewer, intervals of 40 to 100 groups cover the true value too rarely; with more, intervals of 10 groups do. For 10
debates, intervals cover it 90 % of the time if 1 % of verdicts are unequal, and 88 % if 2 % are unequal and both judges
accept 90 %.
"""
EXTRA_CLUSTERS = 2.5
"""The number of groups that are added to the table to compute its design effect, spread evenly over its cells.

Otherwise the effect would be too small if the sample lacks the few groups whose debates resemble each other.
"""
DRAWS = 4_000


@dataclass(frozen=True)
class Agreement:
    """The agreement of two judges."""

    raw: Share
    """The share of debates with equal verdicts."""
    kappa: Quantity


def agreement(
    first_verdicts: Sequence[int] | Codes,
    second_verdicts: Sequence[int] | Codes,
    cluster_numbers: Sequence[int] | Codes,
    total: int,
) -> Agreement | None:
    """Return the agreement of two judges whose verdicts have the same order; None without verdicts.

    `cluster_numbers` has a number below `total` for each debate.
    """
    first, second, clusters = (np.asarray(codes) for codes in (first_verdicts, second_verdicts, cluster_numbers))
    raw = mean_share((first == second).astype(float), clusters, total)
    return None if raw is None else Agreement(raw, _kappa(first, second, clusters, total, raw))


def _kappa(first: Codes, second: Codes, clusters: Codes, total: int, raw: Share) -> Quantity:
    n, count, verdicts = len(first), raw.clusters, np.union1d(first, second)
    if len(verdicts) == 1:
        return Quantity(None, None, None, n, count, "both judges always gave the same verdict: kappa is undefined")
    value, influence = _linearize(first, second, np.ones(n))
    if count < 2:
        return Quantity(value, None, None, n, count, "a single group of datapoints leaves the error unknown")
    by_cluster = np.bincount(clusters, weights=influence, minlength=total)
    stderr = math.sqrt(count / (count - 1) * math.fsum(by_cluster**2))
    sizes = np.bincount(clusters, minlength=total)
    largest_effect = float((sizes**2).sum()) / n  # the design effect if a group's debates were all equal
    effect = min(max(_design_effect(first, second, clusters, total, n / count), 1.0), largest_effect)
    effective = n / effect * (NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) / t_quantile(count)) ** 2
    low, high = _posterior_interval(first, second, verdicts, effective)
    return Quantity(value, stderr, (min(low, value), max(high, value)), n, count)


def _linearize(first: Codes, second: Codes, weights: Floats) -> tuple[float, Floats]:
    """Return kappa, and the contribution of each debate to its error."""
    verdicts, size = np.union1d(first, second), float(weights.sum())
    shares = np.array([[weights[judge == verdict].sum() / size for verdict in verdicts] for judge in (first, second)])
    equal = first == second
    observed, expected = float(weights[equal].sum() / size), float(shares[0] @ shares[1])
    # Each debate's part in the errors of the observed and of the expected agreement.
    expected_parts = shares[1][np.searchsorted(verdicts, first)] + shares[0][np.searchsorted(verdicts, second)]
    slope = (1 - observed) / (1 - expected) ** 2
    parts = (equal - observed) / (1 - expected) - slope * (expected_parts - 2 * expected)
    return 1 - (1 - observed) / (1 - expected), weights * parts / size


def _design_effect(first: Codes, second: Codes, clusters: Codes, total: int, mean_size: float) -> float:
    """Return the clustered variance of kappa divided by its variance for independent debates; see `EXTRA_CLUSTERS`."""
    verdicts = np.union1d(first, second)
    cells = len(verdicts) ** 2
    weights = np.concatenate((np.ones(len(first)), np.full(cells, EXTRA_CLUSTERS * mean_size / cells)))
    firsts = np.concatenate((first, np.repeat(verdicts, len(verdicts))))
    seconds = np.concatenate((second, np.tile(verdicts, len(verdicts))))
    influence = _linearize(firsts, seconds, weights)[1]
    by_cluster = np.bincount(np.concatenate((clusters, total + np.arange(cells))), weights=influence)
    return math.fsum(by_cluster**2) / math.fsum(influence**2 / weights)


def _posterior_interval(first: Codes, second: Codes, verdicts: Codes, effective: float) -> Interval:
    """Return the interval of kappa's posterior distribution. The table has `effective` independent debates."""
    kinds = len(verdicts)
    cells = np.searchsorted(verdicts, first) * kinds + np.searchsorted(verdicts, second)
    counts = np.bincount(cells, minlength=kinds**2) * effective / len(first) + PRIOR / kinds**2
    tables = np.random.default_rng(0).standard_gamma(counts, (DRAWS, kinds**2)).reshape(DRAWS, kinds, kinds)
    tables /= tables.sum(axis=(1, 2), keepdims=True)
    observed = np.trace(tables, axis1=1, axis2=2)
    expected = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(1 - (1 - observed) / (1 - expected), (tail, 1 - tail))
    return float(low), float(high)
