"""How often repeats of one request differ, and the difference of two runs that such flips alone may cause.

If a share f of repeats differs, the variance of one verdict is f / 2, and that of the difference of two runs of N
datapoints is f / N. The noise floor is the difference that exceeds this noise only 5 % of the time.
"""

from __future__ import annotations

import math
from statistics import NormalDist

import numpy as np

from runner.statistics.clustered_means import Codes, Share, mean_share
from runner.statistics.significance import ALPHA

_Z = NormalDist().inv_cdf(1 - ALPHA / 2)


def noise_floor(flips: float, datapoints: int, variant: float = 0.0) -> float:
    """Return the noise floor of two runs of so many datapoints.

    `flips` is the share of readings that differ, and `variant` the variance between variants of the judge, which more
    datapoints do not reduce.
    """
    return _Z * math.sqrt(max(flips, 0.0) / datapoints + 2 * max(variant, 0.0))


def retest_flips(codes: Codes, requests: Codes, clusters: Codes) -> Share | None:
    """Return the share of pairs of readings of one request whose codes differ; None if no request was repeated.

    `codes` are verdicts or answers as numbers from 0, and `clusters` has the cluster of each request. A request counts
    by its number of readings above 1.
    """
    size = int(requests.max()) + 1
    counts = np.bincount(requests, minlength=size).astype(float)
    same = np.unique(requests * (int(codes.max()) + 1) + codes, return_counts=True)
    owners, numbers = same[0] // (int(codes.max()) + 1), same[1].astype(float)
    equal_pairs = np.bincount(owners, numbers * (numbers - 1), size)
    repeated = counts > 1
    shares = 1 - equal_pairs[repeated] / (counts * (counts - 1))[repeated]
    return mean_share(shares, clusters[repeated], int(clusters.max()) + 1, weights=counts[repeated] - 1)
