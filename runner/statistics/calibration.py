"""How good probabilities are: P(accept) beside whether the solution is right.

The Brier score is the mean of (p - y)^2 (Brier 1950). Its decomposition (Murphy 1973) is over ten bins of equal width:
reliability = sum of n_b/n (mean p - mean y)^2, resolution = sum of n_b/n (mean y - overall)^2, uncertainty =
overall (1 - overall), and Brier = reliability - resolution + uncertainty where all probabilities of a bin are equal;
else what differs within bins is left over. ECE = sum of n_b/n |mean p - mean y| over the same bins (Naeini 2015).

ECE and the roots of reliability and resolution are norms of what is measured by bin, so that they are too large where
the truth is near 0. Their intervals hold all the same. The low end: a norm is off by no more than the norm of the
errors (in ECE, bins more than three errors from 0 count with their sign). The high end: a norm is at least its slope
times what is measured. Errors are drawn from a normal distribution with the bins' clustered covariance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from runner.statistics.clustered_means import Codes, Floats, Interval, Quantity, Share, share
from runner.statistics.intervals import CONFIDENCE

BINS = 10
"""Of equal width: [0, 0.1), ..., [0.9, 1]."""
LOG_FLOOR = 0.001
"""Probabilities below it and above 1 less it count as it, so that one sure error does not make the score infinite."""
DRAWS = 4_000
TAIL = 0.5 + CONFIDENCE / 2
SURE = 3.0
"""So many errors from 0, the sign of a bin's gap is taken as known."""

_Squares = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Bin:
    """A point of the reliability curve: of the games with such a P(accept), how many solutions are right."""

    low: float
    high: float
    n: int
    confidence: float
    """The mean of P(accept)."""
    right: float
    """The share of right solutions."""
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, eq=False)
class Forecasts:
    """Probabilities of acceptance with the labels, as columns. `clusters`: of each, a number below `total`."""

    p: Floats
    y: Codes
    clusters: Codes
    total: int

    @cached_property
    def n(self) -> int:
        return len(self.p)

    @cached_property
    def brier(self) -> Share:
        return self._mean((self.p - self.y) ** 2)

    @cached_property
    def log_score(self) -> Share:
        """The mean of -log P(label) in nats, over its maximum of -log(LOG_FLOOR), so that it is from 0 to 1."""
        told = np.clip(np.where(self.y == 1, self.p, 1 - self.p), LOG_FLOOR, 1 - LOG_FLOOR)
        return self._mean(np.log(told) / math.log(LOG_FLOOR))

    @property
    def scaled_log_score(self) -> Quantity:
        """The mean of -log P(label) in nats."""
        score, most = self.log_score, -math.log(LOG_FLOOR)
        low, high = score.interval
        error = None if score.stderr is None else most * score.stderr
        return Quantity(most * score.value, error, (most * low, most * high), self.n, self.brier.clusters)

    def brier_part(self, name: str) -> Quantity:
        """Return `reliability`, `resolution` or `uncertainty` of the Brier score."""
        value: float = getattr(self, name)
        return Quantity(value, None, getattr(self, f"{name}_interval", None), self.n, self.brier.clusters)

    @property
    def calibration_error(self) -> Quantity:
        """The expected calibration error."""
        return Quantity(self.ece, self.ece_error, self.ece_interval, self.n, self.brier.clusters)

    @property
    def auroc(self) -> Share | None:
        """The area under the ROC curve; None without both labels."""
        return auroc(self.p, self.y, self.clusters, self.total)

    @cached_property
    def uncertainty(self) -> float:
        right = self._overall
        return right * (1 - right)

    @cached_property
    def reliability(self) -> float:
        return self._weighted(self._gaps**2)

    @cached_property
    def resolution(self) -> float:
        return self._weighted(self._lifts**2)

    @cached_property
    def ece(self) -> float:
        return self._weighted(np.abs(self._gaps))

    @cached_property
    def ece_error(self) -> float | None:
        """The clustered error of the sum of gaps with their signs held; too small where they are near 0."""
        signed = (self.p - self.y) * np.sign(self._gaps)[self._bin]
        return self._mean(signed).stderr

    @cached_property
    def ece_interval(self) -> Interval:
        """Reaches 0 where the judge may be calibrated."""
        errors = self._drawn(self._gap_residuals)
        signed = errors * np.sign(self._gaps)
        sure = np.abs(self._gaps) > SURE * errors.std(axis=0)
        low = np.quantile(np.where(sure, signed, np.abs(errors)) @ self._weights, TAIL)
        high = np.quantile(-signed @ self._weights, TAIL)
        return max(self.ece - float(low), 0.0), min(self.ece + float(high), 1.0)

    @cached_property
    def reliability_interval(self) -> Interval:
        return self._norm_interval(self._gaps, self._gap_residuals)

    @cached_property
    def resolution_interval(self) -> Interval:
        return self._norm_interval(self._lifts, self._lift_residuals)

    @cached_property
    def curve(self) -> Sequence[Bin]:
        """The bins that have games."""
        found = []
        for at in np.flatnonzero(self._counts).tolist():
            inside = self._bin == at
            right = share(self.y[inside].astype(float), self.clusters[inside], self.total)
            assert right is not None
            low, high = right.interval if right.clusters > 1 else (None, None)
            found.append(Bin(at / BINS, (at + 1) / BINS, right.n, float(self._confidence[at]), right.value, low, high))
        return found

    def _mean(self, values: Floats) -> Share:
        found = share(values, self.clusters, self.total)
        assert found is not None
        return found

    # By bin

    @cached_property
    def _bin(self) -> Codes:
        return np.minimum((self.p * BINS + 1e-9).astype(np.int64), BINS - 1)

    @cached_property
    def _counts(self) -> Codes:
        return np.bincount(self._bin, minlength=BINS)

    @cached_property
    def _weights(self) -> Floats:
        return self._counts / self.n

    @cached_property
    def _overall(self) -> float:
        return math.fsum(self.y) / self.n

    @cached_property
    def _confidence(self) -> Floats:
        return np.bincount(self._bin, weights=self.p, minlength=BINS) / np.maximum(self._counts, 1)

    @cached_property
    def _right(self) -> Floats:
        return np.bincount(self._bin, weights=self.y, minlength=BINS) / np.maximum(self._counts, 1)

    @cached_property
    def _gaps(self) -> Floats:
        return self._confidence - self._right

    @cached_property
    def _lifts(self) -> Floats:
        return np.where(self._counts > 0, self._right - self._overall, 0.0)

    def _weighted(self, values: Floats) -> float:
        return math.fsum(self._weights * values)

    @cached_property
    def _gap_residuals(self) -> _Squares:
        return self._by_cluster(self.p - self.y - self._gaps[self._bin])

    @cached_property
    def _lift_residuals(self) -> _Squares:
        inside = self._by_cluster(self.y - self._right[self._bin])
        overall = np.bincount(self.clusters, weights=self.y - self._overall, minlength=self.total) / self.n
        return inside - np.where(self._counts > 0, overall[:, None], 0.0)

    def _by_cluster(self, residuals: Floats) -> _Squares:
        """What each cluster adds to the error of each bin's mean: (cluster, bin)."""
        at = self.clusters * BINS + self._bin
        sums = np.bincount(at, weights=residuals, minlength=self.total * BINS).reshape(self.total, BINS)
        return sums / np.maximum(self._counts, 1)

    def _drawn(self, influence: _Squares) -> _Squares:
        """Errors of the bins' means: (draw, bin), normal, with their clustered covariance.

        A bin in which all are right or all wrong has an error too: that of a share with one more of each.
        """
        present = float(np.count_nonzero(np.bincount(self.clusters, minlength=self.total)))
        covariance = influence.T @ influence * (present / max(present - 1, 1.0))
        smooth = (self._right * self._counts + 1) / (self._counts + 2)
        own = np.bincount(np.unique(self.clusters * BINS + self._bin) % BINS, minlength=BINS)
        alike = (self._right == 0) | (self._right == 1)
        least = np.where(self._counts > 0, smooth * (1 - smooth) / np.maximum(np.where(alike, own, self._counts), 1), 0)
        missing = np.maximum(least - np.diag(covariance), 0.0)
        values, vectors = np.linalg.eigh(covariance + np.diag(missing))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        errors: _Squares = _normals() @ root.T
        return errors

    def _norm_interval(self, values: Floats, influence: _Squares) -> Interval:
        """Of the weighted sum of squares of what these values measure."""
        errors, norm = self._drawn(influence), math.sqrt(self._weighted(values**2))
        low = norm - float(np.quantile(np.sqrt(errors**2 @ self._weights), TAIL))
        slope = self._weights * values / norm if norm else np.sqrt(self._weights)
        high = norm + float(np.quantile(-errors @ slope, TAIL))
        return max(low, 0.0) ** 2, min(high, 1.0) ** 2


@cache
def _normals() -> _Squares:
    """The same draws for every run, so that a run's numbers are the same wherever they are counted."""
    return np.random.default_rng(0).standard_normal((DRAWS, BINS))


def auroc(p: Floats, y: Codes, clusters: Codes, total: int) -> Share | None:
    """The chance that a right solution has a higher P(accept) than a wrong one, ties half; None without both labels.

    Mann and Whitney's statistic; its error from structural components summed by cluster (DeLong 1988, Obuchowski 1997).
    """
    right, wrong = np.sort(p[y == 1]), np.sort(p[y == 0])
    if not len(right) or not len(wrong):
        return None
    above = _placed(p[y == 1], wrong)  # of each right one, the share of wrong ones below it
    below = 1 - _placed(p[y == 0], right)
    value = math.fsum(above) / len(above)
    of_right = np.bincount(clusters[y == 1], weights=(above - value) / len(above), minlength=total)
    of_wrong = np.bincount(clusters[y == 0], weights=(below - value) / len(below), minlength=total)
    influence = np.asarray(of_right + of_wrong, dtype=float)
    count = min(len(np.unique(clusters[y == label])) for label in (0, 1))
    return Share(value, influence, len(p), count, _effective_size(value, len(right), len(wrong)))


def _effective_size(area: float, right: int, wrong: int) -> float:
    """The most that games on their own would be worth, by Hanley and McNeil 1982.

    Where hardly a wrong solution stands above a right one, the components have next to no spread.
    """
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (right - 1) * (first - area**2) + (wrong - 1) * (second - area**2)
    return area * (1 - area) * right * wrong / spread if spread > 0 else math.inf


def _placed(values: Floats, among: Floats) -> Floats:
    """Of each value, the share of `among` (sorted) below it, ties half."""
    placed: Floats = (np.searchsorted(among, values) + np.searchsorted(among, values, "right")) / (2 * len(among))
    return placed
