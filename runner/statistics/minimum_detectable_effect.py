"""The smallest difference that the sign-flip test detects with 80 % power, for groups that differ by one amount.

An effect is assumed to multiply the number of groups that differ in one direction, and to divide the number of groups
that differ in the other direction, so that their product stays as it is in the data. If many groups differ without the
effect, it mainly changes their direction. If hardly any group differs, it makes further groups differ.

The test is that of `runner.statistics.sign_flip`, which cannot reject unless at least six groups differ in one
direction. If many groups differ, the result equals the formula of Miller 2024 (arXiv 2411.00640, section 5) without its
normal approximation of the errors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from runner.statistics.sign_flip import FEWEST_GROUPS, MID_P_GROUPS, MOST_REJECTED
from runner.statistics.significance import ALPHA, POWER

_MANY = 400
"""The expected number of differing groups above which it is treated as normally distributed."""
_TABLE_SIZE = 1_000
_BISECTIONS = 30


def detectable_share(groups: int, differing: float, net: float) -> float | None:
    """Return the smallest detectable net share of groups; None if there are too few groups to detect anything.

    In the data, `differing` groups differ, `net` more of them in one direction than in the other.
    """
    if groups < FEWEST_GROUPS:
        return None
    balanced = math.sqrt(max(differing**2 - net**2, 0.0)) / groups
    if differing >= _MANY:
        normal = NormalDist()
        return min(1.0, (normal.inv_cdf(1 - ALPHA / 2) + normal.inv_cdf(POWER)) * math.sqrt(balanced / groups))
    low, high = 0.0, min(1.0, (20 + 9 * math.sqrt(differing)) / groups)
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (low, middle) if _power(groups, math.hypot(balanced, middle), middle) >= POWER else (middle, high)
    return high


def _power(groups: int, share: float, net: float) -> float:
    """Return the power of the test if `share` of the groups differ, `net` more of them in one direction."""
    from scipy.special import bdtrc, gammaln

    share = min(max(share, net), 1.0)
    spread = 6 * math.sqrt(groups * share * (1 - share)) + 1
    n = np.arange(max(0, math.floor(groups * share - spread)), min(groups, math.ceil(groups * share + spread)) + 1)
    probabilities = np.ones(1)
    if share < 1:
        log_probabilities = gammaln(groups + 1) - gammaln(n + 1) - gammaln(groups - n + 1)
        probabilities = np.exp(log_probabilities + n * math.log(share) + (groups - n) * math.log1p(-share))
    else:
        n = np.array([groups])
    needed = _rejecting_counts()[n]
    rejected = np.where(needed <= n, bdtrc(needed - 1.0, n, (1 + net / share) / 2), 0.0)
    return float(probabilities @ rejected)


@lru_cache(maxsize=1)
def _rejecting_counts() -> np.ndarray:
    """Return for each number of equally differing groups how many must differ in one direction to reject."""
    from scipy.special import bdtrc

    needed = np.zeros(_TABLE_SIZE, dtype=np.int64)
    for n in range(_TABLE_SIZE):
        k = np.arange(n // 2 + 1, n + 2)
        p_values = 2 * bdtrc(k - 1.0, n, 0.5)
        mid_p_values = p_values - (p_values - np.append(p_values[1:], 0.0)) / 2
        uses_mid_p = n >= MID_P_GROUPS and p_values[mid_p_values <= ALPHA].max(initial=0.0) <= MOST_REJECTED
        needed[n] = k[np.argmax((mid_p_values if uses_mid_p else p_values) <= ALPHA)]
    return needed
