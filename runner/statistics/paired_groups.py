"""Two systems that were asked the same, by group: the one test of them, whoever asks for it, and their difference.

A comparison, the board's ranks, a sweep's and the view `comparisons` all test what stands here: the sums over the
datapoints of each group of the difference between the means of all repeats of the one and of the other.

Where one system was asked more often than the other, its mean varies less, and so the difference is not symmetric where
they are alike: flipping its signs would reject up to a third at no difference. There each sum is flipped by what it
would have been, in the root of the mean square over all choices, had both been asked as often as the one less. All of
them are then scaled to the variance that the sums have, or to the least that they can have if that is more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import variance

from runner.statistics.confidence_sequences import DifferenceSequence
from runner.statistics.differences import Difference, paired_difference
from runner.statistics.sign_flip import ALPHA, SignFlip, differing, sign_flip


@dataclass(frozen=True)
class Pairs:
    """What the groups that two systems share come to, each in its place of each list."""

    sums: Sequence[float]
    """Over its datapoints: the mean over all repeats of the second system, less that of the first."""
    sizes: Sequence[float]
    """Its datapoints, or what they weigh."""
    spare: Sequence[float]
    """By how much more the sum would vary, had both been asked as often as the one less."""
    least: Sequence[float]
    """The least share of that variance that the sum can have; 1 where both were asked as often."""
    step: float
    """By how much one score can change the difference of a group; see `paired_difference`."""

    @property
    def _flipped(self) -> Sequence[float] | None:
        """What is flipped in place of the sums; None: they are."""
        if not any(self.spare):
            return None
        squares = [one * one + more for one, more in zip(self.sums, self.spare, strict=True)]
        seen = math.fsum(one * one for one in self.sums)
        least = math.fsum(share * square for share, square in zip(self.least, squares, strict=True))
        scale = max(seen, least) / math.fsum(squares)
        return [math.sqrt(scale * square) for square in squares]

    def test(self, seed: int = 0) -> SignFlip:
        """The sign-flip test of no difference."""
        flipped = self._flipped
        if flipped is None:
            return sign_flip(self.sums, seed)
        found = sign_flip(flipped, seed, reached=math.fsum(self.sums))
        return SignFlip(found.p, found.exact, len(differing(self.sums)))

    def difference(self, bound: float | None) -> Difference:
        """The second system's mean less the first's; `bound` is the largest that it can be, if any."""
        flipped = self._flipped
        means, by = (
            None if terms is None else [one / size for one, size in zip(terms, self.sizes, strict=True)]
            for terms in (self.sums, flipped)
        )
        assert means is not None
        return paired_difference(means, self.sizes, bound, self.step, by)

    def at_any_time(self) -> tuple[Difference, float]:
        """The difference of shares, with an interval and a p-value that hold whenever one stopped to play.

        By the confidence sequence of the groups' differences, which does not depend on their order.
        """
        sequence, most = DifferenceSequence(ALPHA), max(self.sizes)
        for one, size in zip(self.sums, self.sizes, strict=True):
            sequence.add(min(max(one / size, -1.0), 1.0), size / most)
        low, high = sequence.interval()
        value = math.fsum(self.sums) / math.fsum(self.sizes)
        p = min(1.0, 2 * (2 / ALPHA) ** -sequence.evidence)  # of the capital c, in each direction at half of the error
        return Difference(value, None, low, high, None, len(self.sizes)), p


def spare_variance(first: Sequence[float], second: Sequence[float]) -> float:
    """Of the scores of one datapoint; see `Pairs.spare`."""
    fewest = min(len(first), len(second))
    return sum(variance(scores) * (1 / fewest - 1 / len(scores)) for scores in (first, second) if len(scores) > fewest)


def least_share(first: int, second: int) -> float:
    """Of so many repeats of one datapoint; see `Pairs.least`."""
    return (1 + min(first, second) / max(first, second)) / 2
