"""Confidence sequences by betting: intervals that hold at every look at once, so that one may stop when one likes.

Of independent observations x in [0, 1] with weights v in (0, 1], the sequence holds theta = E[v x] / E[v]: with the
sizes of groups as weights, the mean over datapoints, whatever the sizes. A bet against theta from below has the capital
prod(1 + c v (x / theta - 1)) for a fixed c in (0, 1): a test martingale where theta is true. It is mixed over c
beforehand (a universal portfolio), falls as theta grows, and by Ville's inequality reaches 2 / alpha at any time with a
chance of at most alpha / 2; so does the bet from above, on 1 - x. What is left are the theta that neither rejects.

Sources: Waudby-Smith and Ramdas 2024 (arXiv 2010.09686) for betting and its capital; Orabona and Jun 2024
(arXiv 2110.14099) for the mixture. `benchmarks/stopping.py` measures how often it errs.

The mean is that of the population from which groups come in an exchangeable order, not of a finite list of them.
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
    """The fractions c, and what is staked on each of a stake of one."""

    fractions: np.ndarray
    log_shares: np.ndarray

    @classmethod
    def of(cls, small: float) -> Self:
        """Evenly spread ones, and a share on small ones."""
        if not small:
            return cls(_EVEN, np.full(len(_EVEN), -math.log(len(_EVEN))))
        shares = [np.full(len(_EVEN), (1 - small) / len(_EVEN)), np.full(len(_SMALL), small / len(_SMALL))]
        return cls(np.concatenate((_EVEN, _SMALL)), np.log(np.concatenate(shares)))


FOR_WIDTH = Bets.of(0.3)
"""Small bets make intervals of many observations narrower."""
FOR_EFFECTS = Bets.of(0.0)
"""Even ones find effects that matter sooner."""
_HALVINGS = 44


class ConfidenceSequence:
    """The 1 - alpha confidence sequence of a mean of observations in [0, 1]."""

    def __init__(self, alpha: float = ALPHA, bets: Bets = FOR_WIDTH) -> None:
        self._needed = math.log(2 / alpha)
        self._bets = bets
        self._counts: dict[tuple[float, float], int] = {}
        """How often each weight and value came."""

    def add(self, value: float, weight: float = 1.0) -> None:
        """Take one observation: a value from 0 to 1, with a weight above 0 and at most 1.

        Raises:
            ValueError: it is outside of these bounds, which the guarantee rests on.
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
        """What is left now; it holds the mean of the observations."""
        mean = self.mean
        if mean is None:
            return 0.0, 1.0
        counts, weights, values = self._arrays()
        low = self._lower(counts, weights, values, mean)
        return low, 1 - self._lower(counts, weights, 1 - values, 1 - mean)

    def excludes(self, theta: float) -> bool:
        """Whether a mean strictly between 0 and 1 is rejected now; the same as being outside of `interval`."""
        return self.evidence(theta) >= 1

    def evidence(self, theta: float) -> float:
        """How far the case against a mean has come: the log of the bet's capital, as a share of what rejects it."""
        mean = self.mean
        if mean is None:
            return 0.0
        counts, weights, values = self._arrays()
        if mean < theta:  # only the bet on the side of the mean can have won
            values, theta = 1 - values, 1 - theta
        return _log_capital(self._bets, counts, weights, values, theta) / self._needed

    def _arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows = [(count, v, x) for (v, x), count in sorted(self._counts.items())]
        counts, weights, values = np.asarray(rows, dtype=float).reshape(-1, 3).T
        return counts, weights, values

    def _lower(self, counts: np.ndarray, weights: np.ndarray, values: np.ndarray, mean: float) -> float:
        """The largest theta, from below, that is rejected, by halving: the capital falls as theta grows."""
        rejected, kept = 0.0, mean
        if mean <= 0:
            return 0.0
        for _ in range(_HALVINGS):
            middle = (rejected + kept) / 2
            if _log_capital(self._bets, counts, weights, values, middle) >= self._needed:
                rejected = middle
            else:
                kept = middle
        return rejected


def _log_capital(bets: Bets, counts: np.ndarray, weights: np.ndarray, values: np.ndarray, theta: float) -> float:
    """The log of what the mixture of bets that the mean is above theta has come to."""
    logs = bets.log_shares + np.log1p(np.outer(bets.fractions, weights * (values / theta - 1))) @ counts
    most = float(logs.max())
    return most + math.log(float(np.exp(logs - most).sum()))


class DifferenceSequence:
    """The confidence sequence of a mean of paired differences in [-1, 1]."""

    def __init__(self, alpha: float = ALPHA) -> None:
        self._halved = ConfidenceSequence(alpha, FOR_EFFECTS)

    def add(self, difference: float, weight: float = 1.0) -> None:
        """Take one difference, with a weight above 0 and at most 1."""
        self._halved.add((difference + 1) / 2, weight)

    @property
    def n(self) -> int:
        return self._halved.n

    @property
    def mean(self) -> float | None:
        mean = self._halved.mean
        return None if mean is None else 2 * mean - 1

    def interval(self) -> tuple[float, float]:
        low, high = self._halved.interval()
        return 2 * low - 1, 2 * high - 1

    @property
    def evidence(self) -> float:
        """How far the case against no difference has come; at 1 it is rejected. Which way, the sign of `mean` says."""
        return self._halved.evidence(0.5)

    @property
    def decided(self) -> bool:
        """Whether no difference is rejected."""
        return self.evidence >= 1
