"""The test of the difference between two systems with the same datapoints, and the size of this difference.

Comparisons, the ranks of boards and sweeps, and the view `comparisons` all use this test. Its observations are groups
of datapoints. The value of a group is a sum over its datapoints: of the mean over the repeats of the second system,
minus that of the first.

If one system has more repeats than the other, its mean varies less. So the distribution of the difference is asymmetric
even if the systems are equal, and a test that flips its signs would reject in up to a third of cases. Then the test
flips other values: the root mean square of each sum if both systems had the smaller number of repeats. These values are
scaled to the variance of the sums, or to the least possible variance if that is larger.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import variance

from runner.statistics.confidence_sequences import DifferenceSequence
from runner.statistics.differences import Difference, agree_with_test, paired_difference
from runner.statistics.equivalence import Equivalence, equivalence_test
from runner.statistics.intervals import CONFIDENCE
from runner.statistics.sign_flip import SignFlip, nonzero_differences, sign_flip
from runner.statistics.significance import ALPHA


@dataclass(frozen=True)
class Pairs:
    """The groups of datapoints that two systems share. All lists have the same order."""

    sums: Sequence[float]
    """Sums over the datapoints of a group: the mean over the repeats of the second system, minus that of the first."""
    sizes: Sequence[float]
    """The number of datapoints in each group, or their weight."""
    missing_variances: Sequence[float]
    """The variance that each sum would gain if both systems had the smaller number of repeats."""
    least_shares: Sequence[float]
    """The least share of the variance after this gain that each sum can have; 1 with equal numbers of repeats."""
    step: float
    """The largest change that one score can cause in the difference of a group; see `paired_difference`."""

    @property
    def _flipped(self) -> Sequence[float] | None:
        """The values that the test flips instead of the sums; None if it flips the sums."""
        if not any(self.missing_variances):
            return None
        squares = [total * total + missing for total, missing in zip(self.sums, self.missing_variances, strict=True)]
        observed = math.fsum(total * total for total in self.sums)
        minimum = math.fsum(share * square for share, square in zip(self.least_shares, squares, strict=True))
        scale = max(observed, minimum) / math.fsum(squares)
        return [math.sqrt(scale * square) for square in squares]

    def test(self, level: float = ALPHA) -> SignFlip:
        """Return the sign-flip test of no difference; see `sign_flip`."""
        flipped = self._flipped
        if flipped is None:
            return sign_flip(self.sums, level=level)
        result = sign_flip(flipped, reached=math.fsum(self.sums), level=level)
        return SignFlip(result.p, result.exact, len(nonzero_differences(self.sums)))

    def difference(self, bound: float | None, level: float = CONFIDENCE) -> Difference:
        """Return the second system's mean minus the first's; `bound` is the largest possible difference, if any."""
        means = [total / size for total, size in zip(self.sums, self.sizes, strict=True)]
        return paired_difference(means, self.sizes, bound, self.step, level)

    def compare(self, bound: float | None) -> tuple[Difference, SignFlip]:
        """Return the difference with its test; the interval contains 0 exactly if the test does not reject at 5 %."""
        tested = self.test()
        return agree_with_test(self.difference(bound), tested.p), tested

    def equivalence(self, bound: float | None, margin: float) -> Equivalence:
        """Test whether the difference is within `margin` of 0."""
        means = [total / size for total, size in zip(self.sums, self.sizes, strict=True)]
        return equivalence_test(means, self.sizes, margin, bound, self.step)

    def at_any_time(self, level: float = CONFIDENCE) -> tuple[Difference, float]:
        """Return the difference of shares, with an interval and a p-value that are valid for any stopping rule.

        Both come from the confidence sequence of the groups' differences, which does not depend on their order.
        """
        alpha = 1 - level
        sequence, largest = DifferenceSequence(alpha), max(self.sizes)
        for total, size in zip(self.sums, self.sizes, strict=True):
            sequence.add(min(max(total / size, -1.0), 1.0), size / largest)
        low, high = sequence.interval()
        value = math.fsum(self.sums) / math.fsum(self.sizes)
        p = min(1.0, 2 * (2 / alpha) ** -sequence.evidence)  # from the capital c, with half the error in each direction
        return Difference(value, None, low, high, None, len(self.sizes)), p


def missing_variance(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the value of `Pairs.missing_variances` for the scores of one datapoint."""
    fewest = min(len(first), len(second))
    return sum(variance(scores) * (1 / fewest - 1 / len(scores)) for scores in (first, second) if len(scores) > fewest)


def least_share(first: int, second: int) -> float:
    """Return the value of `Pairs.least_shares` for the numbers of repeats of one datapoint."""
    return (1 + min(first, second) / max(first, second)) / 2
