"""Differences between two systems, with intervals and the smallest difference that the data could detect.

The observations are groups of datapoints, which are independent. The paired interval is Student's over the groups and
half an additional group in each direction (after Agresti and Min 2005, and Bonett and Price 2012, who do this for pairs
of single verdicts). That interval fails if few groups cause the spread. Then the interval is the score interval of
Tango 1998 for an equal number of differing pairs or, if differences have no bound, two whole groups are added. The
unpaired interval combines the intervals of the two systems (Newcombe 1998), and the test is Welch's. The smallest
detectable difference is that of Miller 2024 (arXiv 2411.00640, section 5) if differences have no bound. Otherwise it is
that of `runner.statistics.variance_components`, or of `runner.statistics.minimum_detectable_effect` if all groups that
differ do so by one amount. The spread of the differences between groups is assumed to stay as it is in the data.
`benchmarks/comparisons.py` measures the coverage of the intervals.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist

import numpy as np

from runner.statistics.intervals import CONFIDENCE, mean_interval, student_tail, t_quantile
from runner.statistics.minimum_detectable_effect import detectable_share
from runner.statistics.sign_flip import FEWEST_GROUPS, nonzero_differences
from runner.statistics.significance import ALPHA, POWER
from runner.statistics.variance_components import smallest_difference

FEW = 4.0
"""The effective number of differing groups below which differences are treated like those of single verdicts."""
_EQUAL = 1e-9
_HALVINGS = 50


@dataclass(frozen=True)
class Difference:
    """The difference of two means: the second minus the first."""

    value: float
    stderr: float | None
    low: float | None
    high: float | None
    detectable: float | None
    """The smallest difference that the test at 5 % detects with 80 % power; None if it can detect none."""
    groups: int


def paired_difference(
    differences: Sequence[float],
    sizes: Sequence[float],
    bound: float | None,
    step: float = 0.0,
    level: float = CONFIDENCE,
) -> Difference:
    """Return the mean difference, given the difference of each group and its size.

    `bound` is the largest possible difference, None if there is none. `step` is the largest change that one score can
    cause in the difference of a group. If no group differs by at least half of `step`, the error is computed as if
    groups differed by `step`.

    The error is unknown for a single group, and if no group differs and differences have no bound.
    """
    d, n = np.asarray(differences, dtype=float), np.asarray(sizes, dtype=float)
    groups = len(d)
    value = math.fsum(d * n) / math.fsum(n)
    nonzero = np.abs(nonzero_differences(d))
    if groups < 2 or (not len(nonzero) and bound is None):
        return Difference(value, None, None, None, None, groups)
    weights, approximation = n / n.mean(), approximate_differences(d, n, bound, step)
    is_few = approximation.groups < FEW
    extra, extra_difference = (2, float(nonzero.max())) if is_few and bound is None else (1, approximation.amount)
    centre = math.fsum(d * weights) / (groups + extra)
    squares = math.fsum((weights * (d - centre)) ** 2) + extra * (extra_difference**2 + centre**2)
    stderr = math.sqrt(squares / (groups + extra - 1) / (groups + extra))
    half = t_quantile(groups, level) * stderr
    low, high = approximation.interval(level) if is_few and bound is not None else (centre - half, centre + half)
    limit = math.inf if bound is None else bound
    low, high = max(low, -limit), min(high, limit)
    smallest: float | None = None
    if bound is None:
        smallest = _detectable(stderr, groups) if groups >= FEWEST_GROUPS else None
    elif is_few or np.ptp(np.abs(nonzero_differences(weights * d))) < _EQUAL:
        smallest = approximation.detectable()
    else:
        share = smallest_difference(
            groups, lambda effect: approximation.variance(bound * effect) / bound**2, step / bound
        )
        smallest = None if share is None else share * bound
    if smallest is not None and smallest > limit:
        smallest = None
    return Difference(value, stderr, min(low, value), max(high, value), smallest, groups)


def approximate_differences(
    differences: Sequence[float] | np.ndarray, sizes: Sequence[float] | np.ndarray, bound: float | None, step: float
) -> EqualDifferences:
    """Return the approximation of `paired_difference`, whose `variance` depends on the mean difference."""
    approximation = _approximate(np.asarray(differences) * np.asarray(sizes) / np.mean(sizes), bound)
    if np.abs(nonzero_differences(differences)).max(initial=0.0) < step / 2:
        approximation = replace(approximation, amount=max(approximation.amount, step))
    return approximation


def agree_with_test(difference: Difference, p: float | None, alpha: float = ALPHA) -> Difference:
    """Return the difference with an interval that contains 0 if and only if the test does not reject at `alpha`.

    If the test does not reject, the interval is extended to 0. If it rejects, an interval that contains 0 is cut: it
    ends at a thousandth of the difference. This is a valid confidence set, which may use a different test for each
    value: here, the test of `p` for 0, and the test of the interval for all other values.
    """
    if p is None or difference.low is None or difference.high is None:
        return difference
    low, high = difference.low, difference.high
    if p > alpha:
        return replace(difference, low=min(low, 0.0), high=max(high, 0.0))
    nearest = difference.value / 1_000
    return replace(difference, low=max(low, nearest)) if nearest > 0 else replace(difference, high=min(high, nearest))


@dataclass(frozen=True)
class EqualDifferences:
    """An approximation of differences: some groups all differ by the same amount, the others not at all."""

    count: int
    """The number of all groups."""
    groups: float
    """The number of differing groups; see `_approximate`."""
    amount: float
    total: float
    """The sum of the differences."""
    positive_share: float = 0.5
    """The share of the positive differences in the sum of squares."""

    def interval(self, level: float) -> tuple[float, float]:
        """Return the interval of Tango for paired proportions, with the quantile of Student's t."""
        estimate, z = self.net / self.count, t_quantile(self.count, level)
        return self.amount * self._solve(-1.0, estimate, z), self.amount * self._solve(estimate, 1.0, -z)

    def detectable(self) -> float | None:
        net_share = detectable_share(self.count, self.groups, self.net)
        return None if net_share is None else net_share * self.amount

    def variance(self, effect: float) -> float:
        """Return the variance of the differences if their mean were `effect`; see `minimum_detectable_effect`."""
        # Not from `net`: if the differences are unequal, it is too large a part of `groups`.
        balanced = 4 * self.positive_share * (1 - self.positive_share) * (self.groups / self.count) ** 2
        share = min(math.sqrt(balanced + (effect / self.amount) ** 2), 1.0)
        return max(self.amount**2 * share - effect**2, 0.0) * self.count / (self.count - 1)

    @property
    def net(self) -> float:
        """The number of groups that differ in one direction, less those in the other."""
        return min(max(self.total / self.amount, -self.groups), self.groups)

    def _solve(self, low: float, high: float, score: float) -> float:
        """Find by bisection the net share between two limits for which the observed `net` has this score."""
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if self._score(middle) > score else (low, middle)
        return (low + high) / 2

    def _score(self, theta: float) -> float:
        fewer = (self.groups - self.net) / 2
        b = (2 * self.count - self.net) * theta - self.groups
        share = (math.sqrt(max(b * b + 8 * self.count * fewer * theta * (1 - theta), 0.0)) - b) / (4 * self.count)
        variance = self.count * (2 * share + theta * (1 - theta))
        return (self.net - self.count * theta) / math.sqrt(max(variance, 1e-300))


def _approximate(terms: np.ndarray, bound: float | None) -> EqualDifferences:
    """Approximate differences by equal ones that have the same sums of squares and of fourth powers.

    If very few groups differ, they are taken to differ by more than that, up to `bound`.
    """
    nonzero = nonzero_differences(terms)
    if not len(nonzero):
        assert bound is not None
        return EqualDifferences(len(terms), 0.0, bound, 0.0)
    largest = float(np.abs(nonzero).max())
    squares = (nonzero / largest) ** 2
    groups = float(squares.sum() ** 2 / (squares**2).sum())
    amount, total = largest * math.sqrt(float(squares.sum()) / groups), math.fsum(nonzero)
    if groups < FEW and bound is not None and amount < bound:
        enlarged = math.sqrt(amount * bound)
        groups, amount = groups * amount / enlarged, enlarged
    positive_share = float(squares[nonzero > 0].sum() / squares.sum())
    return EqualDifferences(len(terms), groups, amount, total, positive_share)


def _detectable(stderr: float, groups: float) -> float:
    return (t_quantile(groups) + NormalDist().inv_cdf(POWER)) * stderr


@dataclass(frozen=True)
class Sample:
    """The means of one system's groups, with their sizes."""

    means: Sequence[float]
    sizes: Sequence[float]
    rollouts: int
    """The number of all observations."""
    proportion: bool

    @property
    def mean(self) -> float:
        return math.fsum(m * n for m, n in zip(self.means, self.sizes, strict=True)) / math.fsum(self.sizes)

    @property
    def stderr(self) -> float | None:
        """The error clustered by group, that of a ratio if the groups differ in size."""
        count, mean = len(self.means), self.mean
        if count < 2:
            return None
        squares = math.fsum((n * (m - mean)) ** 2 for m, n in zip(self.means, self.sizes, strict=True))
        return math.sqrt(count / (count - 1) * squares) / math.fsum(self.sizes)

    @property
    def interval(self) -> tuple[float | None, float | None]:
        """The interval that a metric of a run has; see `runner.statistics.intervals`."""
        return self.interval_at(CONFIDENCE)

    def interval_at(self, level: float) -> tuple[float | None, float | None]:
        """Return the interval of a confidence level."""
        grouped = any(size != 1 for size in self.sizes)
        return mean_interval(
            self.mean, self.stderr, self.rollouts, len(self.means),
            proportion=self.proportion, grouped=grouped, level=level,
        )  # fmt: skip


def unpaired_difference(first: Sample, second: Sample, level: float = CONFIDENCE) -> tuple[Difference, float | None]:
    """Return the second mean minus the first, of systems with different datapoints, and Welch's p-value.

    The interval of the given level contains 0 exactly if the test does not reject at that level. There is no p-value if
    the error is unknown. If all groups of each system have the same mean, the errors follow from the widths of the
    systems' intervals.
    """
    value, groups = second.mean - first.mean, min(len(first.means), len(second.means))
    errors = [sample.stderr for sample in (first, second)]
    (low1, high1), (low2, high2) = first.interval_at(level), second.interval_at(level)
    if None in errors or low1 is None or high1 is None or low2 is None or high2 is None:
        return Difference(value, None, None, None, None, groups), None
    squares = [float(error or 0.0) ** 2 for error in errors]
    counts = [len(first.means), len(second.means)]
    if not sum(squares):
        z = NormalDist().inv_cdf(0.5 + level / 2)
        squares = [((high1 - low1) / (2 * z)) ** 2, ((high2 - low2) / (2 * z)) ** 2]
    stderr = math.sqrt(sum(squares))
    if not stderr:
        return Difference(value, None, None, None, None, groups), None
    degrees = stderr**4 / sum(square**2 / (n - 1) for square, n in zip(squares, counts, strict=True))
    low = value - math.hypot(second.mean - low2, high1 - first.mean)
    high = value + math.hypot(high2 - second.mean, first.mean - low1)
    p = 2 * student_tail(abs(value / stderr), degrees)
    smallest: float | None = _detectable(stderr, degrees + 1)
    if first.proportion and second.proportion and smallest is not None and smallest > 1:
        smallest = None
    return agree_with_test(Difference(value, stderr, low, high, smallest, groups), p, 1 - level), p
