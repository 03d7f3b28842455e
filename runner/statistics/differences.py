"""Differences between two systems, with intervals and the smallest that so many groups would have shown.

Terms are of groups, which are independent. Paired, the interval is Student's over the groups and half a group more in
each direction (after Agresti and Min 2005, and Bonett and Price 2012, who do so for pairs of single verdicts). Where
few groups carry the spread it is the score interval of Tango 1998 for as many pairs that differ, or two whole groups
are added if nothing bounds a difference: without them it fails there. Unpaired, it is made of the two systems' own
intervals (Newcombe 1998), and the test is Welch's. The smallest detectable effect is that of Miller 2024 (arXiv
2411.00640, section 5) where nothing bounds a difference; see `detectable` for the others.
`benchmarks/comparisons.py` measures how often intervals hold the truth.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from runner.statistics.intervals import CONFIDENCE, interval, student
from runner.statistics.minimum_detectable_effect import FEWEST, POWER, detectable_share
from runner.statistics.sign_flip import differing

FEW = 4.0
"""Where the spread is that of fewer groups, their differences are taken for those of single verdicts."""
_HALVINGS = 50


@dataclass(frozen=True)
class Difference:
    """Of two means: the second less the first."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    detectable: float | None
    """The smallest difference that would be seen four times in five, by the test at 5 %; None: none would be."""
    groups: int


def paired_difference(
    differences: Sequence[float],
    sizes: Sequence[float],
    bound: float | None,
    step: float = 0.0,
    flipped: Sequence[float] | None = None,
) -> Difference:
    """Of differences of group means, each with the size of its group; `bound` is the largest that can be, if any.

    `step` is by how much one score can change the difference of a group: of a system that was asked once, a wrong
    verdict would, and where no group differs by half as much, none has been seen. `flipped` are what the test flips,
    where that is not the differences: what can be seen follows from it.

    One group leaves the error open. So do groups of which none differs, where nothing bounds a difference.
    """
    d, n = np.asarray(differences, dtype=float), np.asarray(sizes, dtype=float)
    groups = len(d)
    value = math.fsum(d * n) / math.fsum(n)
    shown = np.abs(differing(d))
    if groups < 2 or (not len(shown) and bound is None):
        return Difference(value, None, None, None, None, groups)
    weights = n / n.mean()
    carried = _carried(weights * d, bound)
    if shown.max(initial=0.0) < step / 2:
        carried = replace(carried, by=max(carried.by, step))
    is_few = carried.groups < FEW
    added, unseen = (2, float(shown.max())) if is_few and bound is None else (1, carried.by)
    centre = math.fsum(d * weights) / (groups + added)
    squares = math.fsum((weights * (d - centre)) ** 2) + added * (unseen**2 + centre**2)
    stderr = math.sqrt(squares / (groups + added - 1) / (groups + added))
    half = student(groups) * stderr
    low, high = carried.interval() if is_few and bound is not None else (centre - half, centre + half)
    edge = math.inf if bound is None else bound
    low, high = max(low, -edge), min(high, edge)
    tested = carried if flipped is None else _carried(weights * np.asarray(flipped, dtype=float), bound)
    least = tested.detectable() if bound is not None else _detectable(stderr, groups) if groups >= FEWEST else None
    return Difference(value, stderr, min(low, value), max(high, value), least, groups)


@dataclass(frozen=True)
class _Carried:
    """Differences as if some groups differed by the same, and the others not at all."""

    of: int
    """All groups."""
    groups: float
    """As many differ as give the spread and its own error; see `_carried`."""
    by: float
    more: float
    """The sum of the differences."""

    def interval(self) -> tuple[float, float]:
        """Tango's for paired proportions, with Student's quantile."""
        estimate, z = self.net / self.of, student(self.of)
        return self.by * self._where(-1.0, estimate, z), self.by * self._where(estimate, 1.0, -z)

    def detectable(self) -> float | None:
        share = detectable_share(self.of, self.groups)
        return None if share is None else share * self.by

    @property
    def net(self) -> float:
        """Groups that differ in one direction less those in the other."""
        return min(max(self.more / self.by, -self.groups), self.groups)

    def _where(self, low: float, high: float, score: float) -> float:
        """The share of groups, in between, of which the net that was seen has this score, which falls with it."""
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._score(middle) > score else (low, middle)
        return (low + high) / 2

    def _score(self, theta: float) -> float:
        fewer = (self.groups - self.net) / 2
        b = (2 * self.of - self.net) * theta - self.groups
        share = (math.sqrt(max(b * b + 8 * self.of * fewer * theta * (1 - theta), 0.0)) - b) / (4 * self.of)
        variance = self.of * (2 * share + theta * (1 - theta))
        return (self.net - self.of * theta) / math.sqrt(max(variance, 1e-300))


def _carried(terms: np.ndarray, bound: float | None) -> _Carried:
    """What the groups that differ come to: as many, differing by as much, as have the same squares and fourth powers.

    Where they are very few, by more than that: up to what one could differ by.
    """
    shown = differing(terms)
    if not len(shown):
        assert bound is not None
        return _Carried(len(terms), 0.0, bound, 0.0)
    largest = float(np.abs(shown).max())
    squares = (shown / largest) ** 2
    groups = float(squares.sum() ** 2 / (squares**2).sum())
    by, net = largest * math.sqrt(float(squares.sum()) / groups), math.fsum(shown)
    if groups < FEW and bound is not None and by < bound:
        further = math.sqrt(by * bound)
        groups, by = groups * by / further, further
    return _Carried(len(terms), groups, by, net)


def _detectable(stderr: float, groups: float) -> float:
    return (student(groups) + NormalDist().inv_cdf(POWER)) * stderr


@dataclass(frozen=True)
class Sample:
    """The means of one system's groups, with their sizes."""

    means: Sequence[float]
    sizes: Sequence[float]
    rollouts: int
    """All of its observations."""
    proportion: bool

    @property
    def mean(self) -> float:
        return math.fsum(m * n for m, n in zip(self.means, self.sizes, strict=True)) / math.fsum(self.sizes)

    @property
    def stderr(self) -> float | None:
        """Clustered by group: of a ratio, where groups are not of one size."""
        count, mean = len(self.means), self.mean
        if count < 2:
            return None
        squares = math.fsum((n * (m - mean)) ** 2 for m, n in zip(self.means, self.sizes, strict=True))
        return math.sqrt(count / (count - 1) * squares) / math.fsum(self.sizes)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """As for any metric of a run; see `runner.statistics.intervals`."""
        grouped = any(size != 1 for size in self.sizes)
        return interval(
            self.mean, self.stderr, self.rollouts, len(self.means), proportion=self.proportion, grouped=grouped
        )


def unpaired_difference(first: Sample, second: Sample) -> tuple[Difference, float | None]:
    """The second less the first, of systems that were not asked the same, and Welch's p-value; None where it is open.

    Where no group differs from another in either system, the halves of their own intervals stand for their errors.
    """
    value, groups = second.mean - first.mean, min(len(first.means), len(second.means))
    errors = [one.stderr for one in (first, second)]
    (low1, high1), (low2, high2) = first.interval, second.interval
    if None in errors or low1 is None or high1 is None or low2 is None or high2 is None:
        return Difference(value, None, None, None, None, groups), None
    parts = [float(error or 0.0) ** 2 for error in errors]
    counts = [len(first.means), len(second.means)]
    if not sum(parts):
        z = NormalDist().inv_cdf(0.5 + CONFIDENCE / 2)
        parts = [((high1 - low1) / (2 * z)) ** 2, ((high2 - low2) / (2 * z)) ** 2]
    stderr = math.sqrt(sum(parts))
    if not stderr:
        return Difference(value, None, None, None, None, groups), None
    freedom = stderr**4 / sum(part**2 / (n - 1) for part, n in zip(parts, counts, strict=True))
    low = value - math.hypot(second.mean - low2, high1 - first.mean)
    high = value + math.hypot(high2 - second.mean, first.mean - low1)
    least: float | None = _detectable(stderr, freedom + 1)
    if first.proportion and second.proportion and least is not None and least > 1:
        least = None
    return Difference(value, stderr, low, high, least, groups), _two_sided(value / stderr, freedom)


def _two_sided(t: float, freedom: float) -> float:
    """The two-sided p-value of Student's t."""
    from scipy.special import stdtr

    return float(2 * stdtr(freedom, -abs(t)))
