"""The smallest difference that the sign-flip test would see, four times in five.

The groups are taken for pairs of single verdicts: so many of them differ, each by the same, more in one direction than
in the other, and the test is that of `runner.statistics.sign_flip`, which cannot reject before six differ in one
direction alone. Where many differ, it is the formula of Miller 2024 (arXiv 2411.00640, section 5) without its normal
errors.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

import numpy as np

from runner.statistics.sign_flip import ALPHA, MID_P_GROUPS, MOST_REJECTED

POWER = 0.8
FEWEST = 6
"""Groups: of fewer, all may differ in one direction, and still 2 of 2^5 flips come as far."""
WIDENED = 0.75
"""Of the groups that an effect has differ, as many differ that did not before: all where hardly any did, and none where
one judge is right wherever the other is."""
_MANY = 400
"""From so many groups that differ on, their number is as good as normal."""
_TABLE = 1_000
_STEPS = 30


def detectable_share(groups: int, differing: float) -> float | None:
    """The net share of groups that has to differ in one direction, of which `differing` are expected to differ at all.

    None: there are too few groups to see anything.
    """
    if groups < FEWEST:
        return None
    if differing >= _MANY:
        normal = NormalDist()
        return min(1.0, (normal.inv_cdf(1 - ALPHA / 2) + normal.inv_cdf(POWER)) * math.sqrt(differing) / groups)
    low, high = 0.0, min(1.0, (20 + 9 * math.sqrt(differing)) / groups)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (
            (low, middle) if _power(groups, differing / groups + WIDENED * middle, middle) >= POWER else (middle, high)
        )
    return high


def _power(groups: int, share: float, net: float) -> float:
    """How often the test rejects where this share of groups differs, and this net one in one direction."""
    from scipy.special import bdtrc, gammaln

    share = min(max(share, net), 1.0)
    spread = 6 * math.sqrt(groups * share * (1 - share)) + 1
    n = np.arange(max(0, math.floor(groups * share - spread)), min(groups, math.ceil(groups * share + spread)) + 1)
    chances = np.ones(1)
    if share < 1:
        logs = gammaln(groups + 1) - gammaln(n + 1) - gammaln(groups - n + 1)
        chances = np.exp(logs + n * math.log(share) + (groups - n) * math.log1p(-share))
    else:
        n = np.array([groups])
    needed = _needed()[n]
    rejected = np.where(needed <= n, bdtrc(needed - 1.0, n, (1 + net / share) / 2), 0.0)
    return float(chances @ rejected)


@lru_cache(maxsize=1)
def _needed() -> np.ndarray:
    """Of so many groups that differ by the same, how many have to in one direction until the test rejects."""
    from scipy.special import bdtrc

    found = np.zeros(_TABLE, dtype=np.int64)
    for n in range(_TABLE):
        k = np.arange(n // 2 + 1, n + 2)
        beyond = 2 * bdtrc(k - 1.0, n, 0.5)
        halved = beyond - (beyond - np.append(beyond[1:], 0.0)) / 2
        is_halved = n >= MID_P_GROUPS and beyond[halved <= ALPHA].max(initial=0.0) <= MOST_REJECTED
        found[n] = k[np.argmax((halved if is_halved else beyond) <= ALPHA)]
    return found
