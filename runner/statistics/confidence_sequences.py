"""Confidence sequences by betting: intervals that all hold at the same time, so that you may stop at any time.

For independent observations x in [0, 1] with weights v in (0, 1], the sequence covers theta = E[v x] / E[v]. With the
sizes of groups as weights, theta is the mean over datapoints, for any sizes. A bet that the mean is above theta has the
capital prod(1 + c v (x / theta - 1)) for a fixed c in (0, 1), which is a test martingale if theta is true. The capital
is mixed over c in advance (a universal portfolio) and falls as theta grows. By Ville's inequality, the probability that
it ever reaches 2 / alpha is at most alpha / 2. The same holds for the bet that the mean is below theta, on 1 - x. The
interval has the values of theta that neither bet rejects.

Sources: Waudby-Smith and Ramdas 2024 (arXiv 2010.09686) for betting and its capital; Orabona and Jun 2024
(arXiv 2110.14099) for the mixture. `benchmarks/stopping.py` measures the error rate.

The mean is that of a population whose groups come in exchangeable order, not of a finite list of groups.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Self

import numpy as np

ALPHA = 0.05

_EVEN = (np.arange(32) + 0.5) / 32
_SMALL = 0.5 * 2.0 ** (-np.arange(1, 13) / 2)


@dataclass(frozen=True)
class Bets:
    """The fractions c of a mixture of bets, and the log of each one's share of the stake."""

    fractions: np.ndarray
    log_shares: np.ndarray

    @classmethod
    def spread(cls, small: float) -> Self:
        """Spread the stake evenly over the fractions. `small` is the share of the stake on small fractions."""
        if not small:
            return cls(_EVEN, np.full(len(_EVEN), -math.log(len(_EVEN))))
        shares = [np.full(len(_EVEN), (1 - small) / len(_EVEN)), np.full(len(_SMALL), small / len(_SMALL))]
        return cls(np.concatenate((_EVEN, _SMALL)), np.log(np.concatenate(shares)))


FOR_WIDTH = Bets.spread(0.3)
"""Bets for narrow intervals: small fractions make intervals of many observations narrower."""
FOR_EFFECTS = Bets.spread(0.0)
"""Bets for tests: fractions that are spread evenly detect relevant effects sooner."""
_HALVINGS = 44


class ConfidenceSequence:
    """The 1 - alpha confidence sequence of a mean of observations in [0, 1]."""

    def __init__(self, alpha: float = ALPHA, bets: Bets = FOR_WIDTH) -> None:
        self._rejecting_log_capital = math.log(2 / alpha)
        self._bets = bets
        self._counts: dict[tuple[float, float], int] = {}
        """The number of observations of each weight and value."""

    def add(self, value: float, weight: float = 1.0) -> None:
        """Add an observation: a value from 0 to 1, with a weight above 0 and at most 1.

        Raises:
            ValueError: the value or weight is outside these bounds, which the guarantee needs.
        """
        if not (0 <= value <= 1 and 0 < weight <= 1):
            raise ValueError(f"an observation of {value} with weight {weight} is not within [0, 1]")
        self._counts[weight, value] = self._counts.get((weight, value), 0) + 1

    @property
    def n(self) -> int:
        return sum(self._counts.values())

    @property
    def mean(self) -> float | None:
        """The weighted mean; None before the first observation."""
        weight = math.fsum(count * v for (v, _), count in self._counts.items())
        return math.fsum(count * v * x for (v, x), count in self._counts.items()) / weight if weight else None

    def interval(self) -> tuple[float, float]:
        """Return the means that are not rejected now; the interval contains the mean of the observations."""
        mean = self.mean
        if mean is None:
            return 0.0, 1.0
        counts, weights, values = self._arrays()
        low = self._lower_limit(counts, weights, values, mean)
        return low, 1 - self._lower_limit(counts, weights, 1 - values, 1 - mean)

    def evidence(self, theta: float) -> float:
        """Return the progress towards rejecting a mean strictly between 0 and 1; at 1 or more it is outside `interval`.

        The progress is the log of the bet's capital, as a share of the log that rejects.
        """
        mean = self.mean
        if mean is None:
            return 0.0
        counts, weights, values = self._arrays()
        if mean < theta:  # only the bet on the side of the mean can have won
            values, theta = 1 - values, 1 - theta
        return _log_capital(self._bets, counts, weights, values, theta) / self._rejecting_log_capital

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = [(count, v, x) for (v, x), count in sorted(self._counts.items())]
        counts, weights, values = np.asarray(rows, dtype=float).reshape(-1, 3).T
        return counts, weights, values

    def _lower_limit(self, counts: np.ndarray, weights: np.ndarray, values: np.ndarray, mean: float) -> float:
        """Return the largest rejected mean below the observed one, by bisection: the capital falls as theta grows."""
        rejected, not_rejected = 0.0, mean
        if mean <= 0:
            return 0.0
        for _ in range(_HALVINGS):
            middle = (rejected + not_rejected) / 2
            if _log_capital(self._bets, counts, weights, values, middle) >= self._rejecting_log_capital:
                rejected = middle
            else:
                not_rejected = middle
        return rejected


def _log_capital(bets: Bets, counts: np.ndarray, weights: np.ndarray, values: np.ndarray, theta: float) -> float:
    """Return the log of the capital of the mixture of bets that the mean is above theta."""
    logs = bets.log_shares + np.log1p(np.outer(bets.fractions, weights * (values / theta - 1))) @ counts
    largest = float(logs.max())
    return largest + math.log(float(np.exp(logs - largest).sum()))


class DifferenceSequence:
    """The confidence sequence of a mean of paired differences in [-1, 1]."""

    def __init__(self, alpha: float = ALPHA) -> None:
        self._rescaled = ConfidenceSequence(alpha, FOR_EFFECTS)

    def add(self, difference: float, weight: float = 1.0) -> None:
        """Add a difference, with a weight above 0 and at most 1."""
        self._rescaled.add((difference + 1) / 2, weight)

    @property
    def n(self) -> int:
        return self._rescaled.n

    @property
    def mean(self) -> float | None:
        mean = self._rescaled.mean
        return None if mean is None else 2 * mean - 1

    def interval(self) -> tuple[float, float]:
        low, high = self._rescaled.interval()
        return 2 * low - 1, 2 * high - 1

    @property
    def evidence(self) -> float:
        """The progress towards rejecting a difference of 0, which is rejected at 1 or more."""
        return self._rescaled.evidence(0.5)
