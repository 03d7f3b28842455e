"""Agreement between two judges of the same debates: the share of equal verdicts, and Cohen's kappa (Cohen 1960).

Kappa is 0 if the judges agree as often as the frequencies of their verdicts alone would make them, and 1 if they always
agree. Its error follows from that of the frequencies (the delta method), summed by cluster. The interval is that of a
table with two more clusters, spread evenly over its cells: without them it covers the truth only 50 to 90 % of the time
with 10 to 40 clusters, because few debates on which the judges differ may all be missing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from runner.statistics.clustered_means import Codes, Floats, Quantity, Share, mean_share
from runner.statistics.intervals import t_quantile

EXTRA_CLUSTERS = 2.0


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
    value, stderr = _estimate(first, second, np.ones(n), clusters, total)
    if count < 2:
        return Quantity(value, None, None, n, count, "a single group of datapoints leaves the error unknown")
    cells = len(verdicts) ** 2
    weights = np.concatenate((np.ones(n), np.full(cells, EXTRA_CLUSTERS * n / count / cells)))
    more = np.repeat(verdicts, len(verdicts)), np.tile(verdicts, len(verdicts))
    firsts, seconds = np.concatenate((first, more[0])), np.concatenate((second, more[1]))
    centre, error = _estimate(
        firsts, seconds, weights, np.concatenate((clusters, total + np.arange(cells))), total + cells
    )
    factor = math.sqrt(count / (count - 1))
    half = t_quantile(count) * factor * error
    interval = max(min(centre - half, value), -1.0), min(max(centre + half, value), 1.0)
    return Quantity(value, factor * stderr, interval, n, count)


def _estimate(
    first: Codes, second: Codes, weights: Floats, clusters: Codes, total: int
) -> tuple[float, float]:  # fmt: skip
    """Return kappa and its clustered error, without a correction for few clusters."""
    verdicts, size = np.union1d(first, second), float(weights.sum())
    shares = np.array([[weights[judge == verdict].sum() / size for verdict in verdicts] for judge in (first, second)])
    equal = first == second
    observed, expected = float(weights[equal].sum() / size), float(shares[0] @ shares[1])
    # Each debate's part in the errors of the observed and of the expected agreement.
    of_expected = shares[1][np.searchsorted(verdicts, first)] + shares[0][np.searchsorted(verdicts, second)]
    slope = (1 - observed) / (1 - expected) ** 2
    parts = (equal - observed) / (1 - expected) - slope * (of_expected - 2 * expected)
    influence = np.bincount(clusters, weights=weights * parts, minlength=total) / size
    return 1 - (1 - observed) / (1 - expected), math.sqrt(math.fsum(influence**2))
