"""Tests of paired differences: the sign-flip permutation test (Fisher 1935), and mid-p McNemar (Fagerland 2013).

A difference is the score of one system on a group of datapoints, minus the score of another system. Groups are
independent; datapoints of one group are not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from runner.statistics.significance import ALPHA

EXACT_GROUPS = 20
"""The largest number n of differing groups whose 2^n sign flips are all enumerated."""
MID_P_GROUPS = 50
"""The fewest differing groups for mid-p, where flips with the same sum count half.

If each datapoint was played once, few sums are possible, and the test at 5 % would otherwise reject only 3.7 % of the
time at no difference.
"""
MOST_REJECTED = 0.06
"""The rejection rate at no difference above which flips with the same sum count in full after all.

If all groups differ by the same amount, few rates are possible: with 50 groups either 3.3 % or 6.5 %.
"""
FLIPS = 20_000
"""The fewest random flips if there are too many to enumerate."""
CLEAR_COUNT = 20
"""If this many flips are as extreme as the differences, p is clearly above the level, and no more flips are drawn."""
FEWEST_GROUPS = 6
"""The fewest differing groups that the test can reject: five in one direction have p = 2 / 2^5 = 0.06."""
_BATCH_ELEMENTS = 1 << 22
_RELATIVE_TOLERANCE = 1e-12
_MAX_DENOMINATOR = 5_040
"""The largest denominator of the fraction. It is small for shares of few repeats of few datapoints."""
_MAX_COUNTING_STEPS = 1 << 26
_MAX_SUM = 1 << 18


@dataclass(frozen=True)
class SignFlip:
    """A two-sided sign-flip test of the mean difference."""

    p: float
    exact: bool
    """Whether all flips were enumerated; otherwise `FLIPS` or more were drawn at random."""
    differing: int
    """The number of groups that differ at all; the others have no information about the direction."""


def sign_flip(differences: Sequence[float], reached: float | None = None, level: float = ALPHA) -> SignFlip:
    """Test whether the differences of groups are symmetric around 0, by their sum; p is 1 if no group differs.

    If the differences are multiples of one fraction, as differences of shares are, the flips with each possible sum are
    counted. Otherwise, all flips are enumerated for up to `EXACT_GROUPS` groups. For more groups, flips are drawn at
    random: so many that a p-value below `level` can be observed, unless p is clearly above it. The order of
    the differences does not matter. `reached` is the sum to compare flips with; None means the sum of the differences.
    """
    values = nonzero_differences(differences)
    if not len(values):
        return SignFlip(1.0, True, 0)
    if reached is None and (integers := _to_integers(values)) is not None:
        return SignFlip(_exact_p(integers), True, len(values))
    reached = abs(math.fsum(values) if reached is None else reached)
    values = np.sort(np.abs(values))
    reached -= _RELATIVE_TOLERANCE * float(values.sum())
    if len(values) <= EXACT_GROUPS:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate((sums + value, sums - value))
        return SignFlip(float(np.mean(np.abs(sums) >= reached)), True, len(values))
    # Hoeffding's bound on the share of such flips; random flips cannot show a share below one in their number.
    upper_bound = 2 * math.exp(-(max(reached, 0.0) ** 2) / (2 * float(values @ values)))
    random, as_extreme, drawn = np.random.default_rng(0), 0, 0
    batch, most = max(1, _BATCH_ELEMENTS // len(values)), max(FLIPS, math.ceil(CLEAR_COUNT / level))
    while drawn < FLIPS or (drawn < most and as_extreme < CLEAR_COUNT and upper_bound > level):
        count = min(batch, (FLIPS if drawn < FLIPS else most) - drawn)
        signs = random.integers(0, 2, (count, len(values)), dtype=np.int8) * 2 - 1
        as_extreme += int(np.count_nonzero(np.abs(signs @ values) >= reached))
        drawn += count
    return SignFlip(min((1 + as_extreme) / (1 + drawn), upper_bound), False, len(values))


def nonzero_differences(differences: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the differences that are not 0. Rounding errors of sums of fractions count as 0."""
    values = np.asarray(differences, dtype=float)
    return np.asarray(values[np.abs(values) > _RELATIVE_TOLERANCE])


def _to_integers(values: np.ndarray) -> np.ndarray | None:
    """Return the values as integer multiples of one fraction; None if they have none, or counting is slow."""
    distinct, inverse = np.unique(values, return_inverse=True)
    shares = [Fraction(float(value)).limit_denominator(_MAX_DENOMINATOR) for value in distinct]
    if any(
        abs(float(share) - value) > _RELATIVE_TOLERANCE * max(1.0, abs(value))
        for share, value in zip(shares, distinct, strict=True)
    ):
        return None
    denominator = math.lcm(*(share.denominator for share in shares))
    numerators = [int(share * denominator) for share in shares]
    divisor = math.gcd(*numerators)
    numerators = [numerator // divisor for numerator in numerators]
    if max(map(abs, numerators)) > _MAX_SUM:
        return None
    scaled = np.asarray(numerators, dtype=np.int64)[inverse]
    total = int(np.abs(scaled).sum())
    return scaled if total <= _MAX_SUM and total * len(scaled) <= _MAX_COUNTING_STEPS else None


def _exact_p(steps: np.ndarray) -> float:
    """Return the p-value of integer differences, from the distribution of their sum under all sign flips."""
    sizes = np.sort(np.abs(steps))
    chances = np.ones(1)  # probabilities of the sums -n, -n + 2, ..., n
    for size in sizes:
        doubled = np.zeros(len(chances) + size)
        doubled[: len(chances)] += chances
        doubled[size:] += chances
        chances = doubled / 2
    largest, reached = int(sizes.sum()), abs(int(steps.sum()))
    tail = 2 * chances[(largest + 1) // 2 :]  # of the sums 0 or 1, and every second sum up to n, with either sign
    if largest % 2 == 0:
        tail[0] /= 2
    p_values = np.cumsum(tail[::-1])[::-1]
    mid_p_values = p_values - tail / 2
    chosen = p_values
    if len(steps) >= MID_P_GROUPS and p_values[mid_p_values <= ALPHA].max(initial=0.0) <= MOST_REJECTED:
        chosen = mid_p_values
    return min(1.0, float(chosen[reached // 2]))


def mid_p_mcnemar(only_first: int, only_second: int) -> float:
    """Return McNemar's two-sided mid-p value from the numbers of pairs with exactly one right verdict."""
    n, fewer = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    pmf = [math.exp(_log_choose(n, k) - n * math.log(2)) for k in range(fewer + 1)]
    return 1.0 - pmf[-1] / 2 if 2 * fewer == n else 2 * math.fsum(pmf) - pmf[-1]


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
