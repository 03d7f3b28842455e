"""Where the spread of scores comes from, and how many groups and repeats it takes to see a difference.

The unit is the group of datapoints, each a group of its own where nothing is said. Its score is the mean over its
datapoints and repeats; with R repeats the variance of the mean over K groups is (between + within / R) / K, the split
of Miller 2024 (arXiv 2411.00640, sections 2.3, 3 and 5).

The number of groups is that of the sign-flip test: without a difference, its spread is the root of the mean square of
the differences, which the difference itself is part of (as for McNemar's test, Connor 1987), with the correction for
continuity (Fleiss) where few groups differ. `benchmarks/planning.py` measures the power.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from statistics import NormalDist, fmean, variance
from typing import NamedTuple

from runner.statistics.sign_flip import ALPHA, FEWEST_GROUPS, MID_P_GROUPS

POWER = 0.8
_LEVEL, _POWER = NormalDist().inv_cdf(1 - ALPHA / 2), NormalDist().inv_cdf(POWER)
"""In standard errors."""

_MID_P = 1.2 * MID_P_GROUPS
"""Where so many groups are to differ, there are nearly always enough for the test to use its level up."""

UNKNOWN_ONCE = 0.25
"""The variance of a group's score where nothing is known of it: the most that a share can vary."""
UNKNOWN = 2 * UNKNOWN_ONCE
"""Of the difference of two such systems, if what one finds hard says nothing of the other."""

_HALVINGS = 40
GAIN = 0.05
"""Further repeats are useless where all that there could be would not lower the standard error by this share."""


@dataclass(frozen=True)
class Split:
    """The variance of a group's score: between groups, and within one by chance when it is played once."""

    between: float
    within: float

    def of_mean(self, repeats: float) -> float:
        """The variance of a group's score over so many repeats."""
        return self.between + self.within / repeats

    @property
    def enough_repeats(self) -> int | None:
        """Beyond so many repeats more are useless; None where groups do not differ, so that each game counts alike."""
        if self.within <= 0:
            return 1
        if self.between <= 0:
            return None
        # sqrt(1 + within / (R between)) <= 1 / (1 - GAIN)
        return max(1, math.ceil(self.within / (self.between * (1 / (1 - GAIN) ** 2 - 1)) - 1e-9))


RULE = f"further repeats would lower the standard error by less than {GAIN:.0%}, however many"


class Play(NamedTuple):
    """One way to play a datapoint: only games of the same one are repeats, those of its block are not."""

    datapoint: str
    stance: int | None
    swapped: bool | None
    stances_exchanged: bool | None = None


@dataclass
class Scores:
    """Scores in [0, 1] by group and datapoint, in memory that does not grow with the repeats."""

    groups: dict[str, dict[Hashable, list[float]]] = field(default_factory=dict)
    """For each datapoint of a group, or each way to play it: how many scores, their sum, the sum of their squares."""

    def add(self, group: str, datapoint: Hashable, score: float) -> None:
        """Count one game."""
        row = self.groups.setdefault(group, {}).setdefault(datapoint, [0.0, 0.0, 0.0])
        row[0] += 1
        row[1] += score
        row[2] += score * score

    def means(self) -> dict[str, float]:
        """The score of each group: the mean over its datapoints, each the mean over its repeats."""
        return {group: fmean(s / n for n, s, _ in points.values()) for group, points in self.groups.items()}

    @property
    def repeats(self) -> float:
        """The mean number of scores of a datapoint."""
        counts = [row[0] for points in self.groups.values() for row in points.values()]
        return fmean(counts) if counts else 0.0

    def total(self) -> float | None:
        """The variance of the groups' scores, chance included; None of fewer than two groups."""
        return variance(self.means().values()) if len(self.groups) > 1 else None

    def furthest(self) -> float:
        """How far from the mean of the groups a further one may be."""
        mean = fmean(self.means().values())
        return max(mean, 1 - mean)

    def split(self) -> Split | None:
        """The variance between groups and within, by groups each of whose datapoints has two scores or more.

        None where there are fewer than two of them. What is found between groups is at least 0.
        """
        repeated = {g: p for g, p in self.groups.items() if all(row[0] > 1 for row in p.values())}
        if len(repeated) < 2:
            return None
        once, of_means = [], []
        for points in repeated.values():
            sizes = [(n, max(squares - s * s / n, 0.0) / (n - 1)) for n, s, squares in points.values()]
            once.append(math.fsum(chance for _, chance in sizes) / len(sizes) ** 2)
            of_means.append(math.fsum(chance / n for n, chance in sizes) / len(sizes) ** 2)
        total = Scores(repeated).total()
        assert total is not None
        return Split(max(total - fmean(of_means), 0.0), fmean(once))


def paired_split(one: Scores, other: Scores) -> tuple[float, float, float] | None:
    """Of two systems on the same groups: the variance between groups of their difference, and within of each.

    None of fewer than two shared groups, or where one of the two played each datapoint once.
    """
    shared = [group for group in one.groups if group in other.groups]
    ours, theirs = (Scores({group: scores.groups[group] for group in shared}) for scores in (one, other))
    a, b = ours.split(), theirs.split()
    if a is None or b is None:
        return None
    total = paired_total(ours, theirs)
    assert total is not None
    return max(total - a.within / ours.repeats - b.within / theirs.repeats, 0.0), a.within, b.within


def paired_total(one: Scores, other: Scores) -> float | None:
    """The variance of the differences of group scores, chance included; None of fewer than two shared groups."""
    differences = paired_differences(one, other)
    return variance(differences) if len(differences) > 1 else None


def paired_differences(one: Scores, other: Scores) -> list[float]:
    """The differences of group scores, on the groups that both have."""
    ours, theirs = one.means(), other.means()
    return [ours[group] - theirs[group] for group in ours if group in theirs]


def with_one_more(variance_of_groups: float, groups: int, furthest: float) -> float:
    """A variance as if one more group had been seen, `furthest` from the mean of the others: never nought.

    Groups of which none differs show no variance; there may be one all the same, about as rare as one in so many.
    """
    return ((groups - 1) * variance_of_groups + groups / (groups + 1) * furthest**2) / groups


def groups_needed(difference: float, variance_of_difference: float, step: float = 1.0) -> int:
    """How many groups show this difference, at a power of 80 % and a level of 5 %; never fewer than the test needs.

    `step` is what one game changes in the difference of a group: 1 where a group is one game, less with repeats.
    """
    square = variance_of_difference + difference**2
    needed = ((_LEVEL * math.sqrt(square) + _POWER * math.sqrt(variance_of_difference)) / difference) ** 2
    many = _MID_P / min(square, 1.0)  # as many groups differ at least, since none does by more than 1
    if needed < many:
        corrected = needed / 4 * (1 + math.sqrt(1 + 4 * step / (needed * difference))) ** 2
        needed = min(max(many, needed), corrected)
    return max(FEWEST_GROUPS, math.ceil(needed - 1e-9))


def smallest_difference(groups: int, variance_of_difference: float, step: float = 1.0) -> float | None:
    """The smallest difference that so many groups show, at the same power and level; None where they show none."""
    if groups_needed(1.0, variance_of_difference, step) > groups:
        return None
    missed, seen = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (missed + seen) / 2
        if groups_needed(middle, variance_of_difference, step) <= groups:
            seen = middle
        else:
            missed = middle
    return seen


def described(scores: Scores) -> Mapping[str, float | int | str | None] | None:
    """The section `variance` of a run's numbers; None of a run whose datapoints were not repeated."""
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
