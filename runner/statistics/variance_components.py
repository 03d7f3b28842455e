"""Components of the variance of scores, and the numbers of groups and repeats that detect a difference.

The unit is the group of datapoints; without `dataset.group_by`, each datapoint is a group. A group's score is the mean
over its datapoints and repeats. With R repeats, the variance of the mean over K groups is (between + within / R) / K,
the split of Miller 2024 (arXiv 2411.00640, sections 2.3, 3 and 5).

The number of groups is that of the sign-flip test. Without a difference, the test's spread is the root mean square of
the differences, which includes the difference itself (as in McNemar's test, Connor 1987). If few groups differ, half of
Fleiss's correction for continuity is added. `benchmarks/planning.py` measures the power.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, variance
from typing import NamedTuple

from runner.statistics.sign_flip import FEWEST_GROUPS, MID_P_GROUPS
from runner.statistics.significance import ALPHA, POWER

_LEVEL_Z, _POWER_Z = NormalDist().inv_cdf(1 - ALPHA / 2), NormalDist().inv_cdf(POWER)
"""Quantiles of the normal distribution, in standard errors."""

_MID_P_EXPECTED = 1.2 * MID_P_GROUPS
"""The expected number of differing groups that nearly always gives enough of them for the mid-p test."""

UNKNOWN_ONCE = 0.25
"""The variance of a group's score if nothing is known about it: the largest variance of a share."""
UNKNOWN = 2 * UNKNOWN_ONCE
"""The variance of the difference of two such systems, if their scores are independent."""

_CONTINUITY = 0.5
"""The share of Fleiss's correction: with all of it, 20 to 40 groups have a power of 85 to 89 % instead of 80 %."""

_HALVINGS = 40
GAIN = 0.05
"""The share of the standard error below which a reduction is not worth further repeats."""


@dataclass(frozen=True)
class Split:
    """The variance of a group's score: between groups, and by chance within a group that is played once."""

    between: float
    within: float

    @property
    def enough_repeats(self) -> int | None:
        """The number of repeats beyond which more are useless; None if groups do not differ."""
        if self.within <= 0:
            return 1
        if self.between <= 0:
            return None
        # sqrt(1 + within / (R between)) <= 1 / (1 - GAIN)
        return max(1, math.ceil(self.within / (self.between * (1 / (1 - GAIN) ** 2 - 1)) - 1e-9))


RULE = f"further repeats would lower the standard error by less than {GAIN:.0%}, however many"


class Play(NamedTuple):
    """One way to play a datapoint. Only games with equal values are repeats; other games of a block are not."""

    datapoint: str
    stance: int | None
    swapped: bool | None
    stances_exchanged: bool | None = None


@dataclass
class Scores:
    """Scores in [0, 1] by group and datapoint, in memory that does not grow with the number of repeats."""

    groups: dict[str, dict[Hashable, list[float]]] = field(default_factory=dict)
    """The number of scores, their sum and their sum of squares, by group and by datapoint (or `Play`)."""

    def add(self, group: str, datapoint: Hashable, score: float) -> None:
        """Add the score of one game."""
        row = self.groups.setdefault(group, {}).setdefault(datapoint, [0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += score
        row[2] += score * score

    def means(self) -> dict[str, float]:
        """Return the score of each group: the mean over its datapoints of the mean over repeats."""
        return {group: fmean(s / n for n, s, _ in points.values()) for group, points in self.groups.items()}

    @property
    def repeats(self) -> float:
        """The mean number of scores of each datapoint."""
        counts = [row[0] for points in self.groups.values() for row in points.values()]
        return fmean(counts) if counts else 0.0

    def total(self) -> float | None:
        """Return the variance of the groups' scores, chance included; None for fewer than two groups."""
        return variance(self.means().values()) if len(self.groups) > 1 else None

    def largest_distance(self) -> float:
        """Return the largest possible distance of another group from the mean of the groups."""
        mean = fmean(self.means().values())
        return max(mean, 1 - mean)

    def split(self) -> Split | None:
        """Return the variance between and within groups, from groups whose datapoints all have two scores or more.

        None if there are fewer than two such groups. The variance between groups is at least 0.
        """
        repeated = {g: p for g, p in self.groups.items() if all(row[0] > 1 for row in p.values())}
        if len(repeated) < 2:
            return None
        single_play, of_means = [], []
        for points in repeated.values():
            variances = [(n, max(squares - s * s / n, 0.0) / (n - 1)) for n, s, squares in points.values()]
            single_play.append(math.fsum(within for _, within in variances) / len(variances) ** 2)
            of_means.append(math.fsum(within / n for n, within in variances) / len(variances) ** 2)
        total = Scores(repeated).total()
        assert total is not None
        return Split(max(total - fmean(of_means), 0.0), fmean(single_play))


def paired_split(first: Scores, second: Scores) -> tuple[float, float, float] | None:
    """Return the variance of two systems' difference between groups, and the variance of each system within groups.

    None for fewer than two shared groups, or if a system played each datapoint once.
    """
    shared = [group for group in first.groups if group in second.groups]
    left, right = (Scores({group: scores.groups[group] for group in shared}) for scores in (first, second))
    a, b = left.split(), right.split()
    if a is None or b is None:
        return None
    total = paired_total(left, right)
    assert total is not None
    return max(total - a.within / left.repeats - b.within / right.repeats, 0.0), a.within, b.within


def paired_total(first: Scores, second: Scores) -> float | None:
    """Return the variance of the differences of group scores, with chance; None for fewer than two shared groups."""
    differences = paired_differences(first, second)
    return variance(differences) if len(differences) > 1 else None


def paired_differences(first: Scores, second: Scores) -> list[float]:
    """Return the differences of group scores on the groups that both systems have."""
    first_means, second_means = first.means(), second.means()
    return [first_means[group] - second_means[group] for group in first_means if group in second_means]


def with_one_more_group(variance_of_groups: float, groups: int, furthest: float) -> float:
    """Return the variance between groups if one more group were observed, at the distance `furthest` from the mean.

    If no groups differ, their variance is 0. But a group that differs may exist, as rare as about one in this many.
    """
    return ((groups - 1) * variance_of_groups + groups / (groups + 1) * furthest**2) / groups


def groups_needed(difference: float, variance_of_difference: float, step: float = 1.0) -> int:
    """Return the number of groups that detect a difference with 80 % power at a level of 5 %, at least `FEWEST_GROUPS`.

    `step` is the change that one game causes in the difference of a group: 1 if a group is one game, less with repeats.

    The test divides the mean by the root mean square, which is larger in samples with a larger mean. So the quotient
    varies less than the mean; for normal differences by the factor `steadiness` (the delta method). Repeats bring the
    differences near to normal. Without repeats, the coarse steps of the test undo the gain.
    """
    second_moment = variance_of_difference + difference**2
    noise_share = variance_of_difference / second_moment
    steadiness = noise_share * (1 + noise_share) / 2
    spread = math.sqrt(variance_of_difference * (1 - (1 - min(step, 1.0) ** 2) * (1 - steadiness)))
    needed = ((_LEVEL_Z * math.sqrt(second_moment) + _POWER_Z * spread) / difference) ** 2
    mid_p_groups = _MID_P_EXPECTED / min(second_moment, 1.0)  # at least so many differ, as none differs by more than 1
    if needed < mid_p_groups:
        corrected = needed / 4 * (1 + math.sqrt(1 + 4 * _CONTINUITY * step / (needed * difference))) ** 2
        needed = min(max(mid_p_groups, needed), corrected)
    return max(FEWEST_GROUPS, math.ceil(needed - 1e-9))


def smallest_difference(
    groups: int, variance_of_difference: Callable[[float], float], step: float = 1.0
) -> float | None:
    """Return the smallest difference of shares that this many groups detect at that power and level, if any.

    `variance_of_difference` returns the variance if the mean difference has a given size.
    """
    if groups_needed(1.0, variance_of_difference(1.0), step) > groups:
        return None
    undetected, detected = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (undetected + detected) / 2
        if groups_needed(middle, variance_of_difference(middle), step) <= groups:
            detected = middle
        else:
            undetected = middle
    return detected


def variance_section(scores: Scores) -> Mapping[str, float | int | str | None] | None:
    """Return the section `variance` of a run's metrics; None if datapoints were not repeated."""
    split = scores.split()
    if split is None:
        return None
    return {
        "groups": len(scores.groups),
        "repeats": scores.repeats,
        "between": split.between,
        "within": split.within,
        "enough_repeats": split.enough_repeats,
        "rule": RULE,
    }
