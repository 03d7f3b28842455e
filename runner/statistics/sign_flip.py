"""Tests of paired differences between systems that were asked the same.

A difference is between two systems on one group of datapoints: groups are independent, what is in them is not.
Sources: the sign-flip permutation (Fisher 1935), mid-p McNemar (Fagerland 2013), Holm 1979.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TypeVar

import numpy as np

Name = TypeVar("Name", bound=Hashable)

EXACT_GROUPS = 20
"""Up to so many groups that differ, all sign flips are counted: 2^20."""
MID_P_GROUPS = 50
"""From so many on, half of the flips that come to the same sum count: where each datapoint was played once, the sums
are so few that the test would reject 3.7 % at no difference, for the 5 % that it says."""
MOST_REJECTED = 0.06
"""But not where that would reject more at no difference: then all of them count. So few sums are possible where all
groups differ by the same that, of 50, either 3.3 % or 6.5 % are rejected, and nothing between."""
FLIPS = 20_000
"""How many are drawn where there are too many to count."""
ALPHA = 0.05
FEWEST_GROUPS = 6
"""With fewer groups that differ the test cannot reject: five that all differ one way have p = 2 / 2^5 = 0.06."""
_AT_ONCE = 1 << 22
_TIE = 1e-12
_DENOMINATOR = 5_040
"""Differences of shares are multiples of a fraction: of a few repeats, by a few datapoints."""
_WORK = 1 << 26
_SUMS = 1 << 18


@dataclass(frozen=True)
class SignFlip:
    """A two-sided sign-flip test of the mean difference."""

    p: float
    exact: bool
    """Whether all flips were counted; else `FLIPS` of them were drawn."""
    differing: int
    """Groups that differ at all; the others say nothing about the direction."""


def sign_flip(differences: Sequence[float], seed: int = 0, reached: float | None = None) -> SignFlip:
    """Test that differences by group are symmetric around nought, by their sum. Without one that differs, p is 1.

    All flips are counted up to `EXACT_GROUPS`, and beyond wherever the differences are multiples of one fraction, as
    those of shares are: then few sums are possible, and how many flips come to each is counted. Where neither is so,
    flips are drawn from `seed`, and the order of the differences does not matter.
    With `reached`, that is the sum that flips have to come to, and not that of the differences themselves.
    """
    values = np.sort(differing(differences))
    if not len(values):
        return SignFlip(1.0, True, 0)
    if reached is None and (steps := _in_steps(values)) is not None:
        return SignFlip(_counted(steps), True, len(values))
    reached = abs(math.fsum(values) if reached is None else reached) - _TIE * float(np.abs(values).sum())
    if len(values) <= EXACT_GROUPS:
        sums = np.zeros(1)
        for value in values:
            sums = np.concatenate((sums + value, sums - value))
        return SignFlip(float(np.mean(np.abs(sums) >= reached)), True, len(values))
    random, beyond = np.random.default_rng(seed), 0
    step = max(1, _AT_ONCE // len(values))
    for start in range(0, FLIPS, step):
        signs = random.integers(0, 2, (min(step, FLIPS - start), len(values)), dtype=np.int8) * 2 - 1
        beyond += int(np.count_nonzero(np.abs(signs @ values) >= reached))
    # No more flips than that come to it, by Hoeffding's bound; drawn ones cannot say less than one in FLIPS.
    most = 2 * math.exp(-(max(reached, 0.0) ** 2) / (2 * float(values @ values)))
    return SignFlip(min((1 + beyond) / (1 + FLIPS), most), False, len(values))


def differing(differences: Sequence[float] | np.ndarray) -> np.ndarray:
    """Those that are not nought, but for what comes of adding fractions in floating point."""
    values = np.asarray(differences, dtype=float)
    found: np.ndarray = values[np.abs(values) > _TIE]
    return found


def _in_steps(values: np.ndarray) -> np.ndarray | None:
    """The values as whole multiples of one fraction; None where there is none that makes counting quick."""
    distinct, inverse = np.unique(values, return_inverse=True)
    shares = [Fraction(float(value)).limit_denominator(_DENOMINATOR) for value in distinct]
    if any(
        abs(float(share) - value) > _TIE * max(1.0, abs(value)) for share, value in zip(shares, distinct, strict=True)
    ):
        return None
    common = math.lcm(*(share.denominator for share in shares))
    steps = [int(share * common) for share in shares]
    divisor = math.gcd(*steps)
    steps = [step // divisor for step in steps]
    if max(map(abs, steps)) > _SUMS:
        return None
    found = np.asarray(steps, dtype=np.int64)[inverse]
    most = int(np.abs(found).sum())
    return found if most <= _SUMS and most * len(found) <= _WORK else None


def _counted(steps: np.ndarray) -> float:
    """The p-value of whole differences, from the chance of each sum under all sign flips."""
    sizes = np.sort(np.abs(steps))
    chances = np.ones(1)  # of the sums -n, -n + 2, ..., n
    for size in sizes:
        more = np.zeros(len(chances) + size)
        more[: len(chances)] += chances
        more[size:] += chances
        chances = more / 2
    most, seen = int(sizes.sum()), abs(int(steps.sum()))
    at = 2 * chances[(most + 1) // 2 :]  # of the sums 0 or 1 and on by twos, of either sign
    if most % 2 == 0:
        at[0] /= 2
    beyond = np.cumsum(at[::-1])[::-1]
    halved = beyond - at / 2
    p = beyond
    if len(steps) >= MID_P_GROUPS and beyond[halved <= ALPHA].max(initial=0.0) <= MOST_REJECTED:
        p = halved
    return min(1.0, float(p[seen // 2]))


def mid_p_mcnemar(only_first: int, only_second: int) -> float:
    """McNemar's two-sided mid-p value, of the pairs in which one of the two is right and the other wrong."""
    n, fewer = only_first + only_second, min(only_first, only_second)
    if n == 0:
        return 1.0
    pmf = [math.exp(_log_choose(n, k) - n * math.log(2)) for k in range(fewer + 1)]
    return 1.0 - pmf[-1] / 2 if 2 * fewer == n else 2 * math.fsum(pmf) - pmf[-1]


def _log_choose(n: int, k: int) -> float:
    return math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)


def holm(p_values: Sequence[float], family: int | None = None) -> list[float]:
    """Holm's adjusted p-values, in the order given; `family` is of how many they are part, if not all."""
    family = len(p_values) if family is None else family
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    adjusted, most = [0.0] * len(p_values), 0.0
    for rank, i in enumerate(order):
        most = max(most, min(1.0, (family - rank) * p_values[i]))
        adjusted[i] = most
    return adjusted


def ranges_in_order(
    order: Iterable[Name], p_values: Callable[[Name, Sequence[Name]], Sequence[float]]
) -> dict[Name, tuple[int, int]]:
    """The ranks that each may have, first and last, of systems from the best; `p_values` are of a leader and others.

    Who is not rejected against the leader, Holm-corrected at 5 %, is tied with it. Of the rest, the best is the next
    leader.

    The leader is whoever did best, which is luck too: of 40 systems that are alike, a quarter of the tables would tell
    some from the leader. So the correction is for all pairs that could have been leader and other, and not for those
    alone that have this leader. Where all are alike, it is then at most 5 % of the tables in which any are told apart.
    Below the first leader the same holds for those that are left, which is no guarantee for the whole table.
    """
    left, first = list(order), 1
    found: dict[Name, tuple[int, int]] = {}
    while left:
        leader, rest = left[0], left[1:]
        tests = holm(p_values(leader, rest), len(left) * len(rest) // 2)
        tied = {leader, *(one for one, p in zip(rest, tests, strict=True) if p > ALPHA)}
        last = first + len(tied) - 1
        found |= dict.fromkeys(tied, (first, last))
        left = [one for one in rest if one not in tied]
        first = last + 1
    return found
