"""Calibration of probabilities: how well P(accept) predicts that the solution is right.

The Brier score is the mean of (p - y)^2 (Brier 1950). Its decomposition (Murphy 1973) is over ten bins of equal width:
reliability = sum of n_b/n (mean p - mean y)^2, resolution = sum of n_b/n (mean y - overall)^2, uncertainty =
overall (1 - overall). Brier = reliability - resolution + uncertainty holds exactly if all probabilities of a bin are
equal; otherwise the variation within bins is left over. The expected calibration error (Naeini 2015) is ECE = sum of
n_b/n |mean p - mean y| over the same bins.

The gap of a bin is mean p - mean y. ECE, reliability and resolution are sizes: sums over bins of absolute values or of
squares. Errors of the gaps enlarge these sizes, so they are biased upwards if the true gaps are near 0. The intervals
of ECE and reliability have all sizes of the true gaps for which the observed size is not in a tail of its distribution
(an inverted test). The true gaps are assumed to be multiples of the observed gaps. For the high end, the gaps are first
made more even, because the bias of ECE depends on how even they are. The errors are drawn from a normal distribution
with the clustered covariance of the bins. If the observed size is below the quantile `LEAST_SIZE` of the sizes of a
calibrated judge, this quantile replaces it in the high end: otherwise the high end would be 0 if errors happen to be
small. The corrected values subtract the bias: for reliability, the variance of the bins' gaps (Bröcker 2012), and for
ECE, an estimate from the same draws (the parametric bootstrap).

Calibration slope and intercept are those of a logistic regression of the labels on the log odds of P(accept) (Cox
1958): 1 and 0 if the judge is calibrated, a slope below 1 if it is overconfident. A few groups often determine the
slope, for example the wrong solutions that a judge accepts with certainty. So the degrees of freedom of the intervals
are not the number of groups, but `DEGREES` times the effective number of groups that contribute to the variance.

If exactly half of the labels are right, this is taken to be so by design. Then the errors of ECE, reliability, slope
and intercept do not include chance in the balance of labels; see `_without_balance`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from statistics import NormalDist
from typing import Any

import numpy as np

from runner.statistics.clustered_means import Codes, Floats, Interval, Quantity, Share, mean_share
from runner.statistics.intervals import CONFIDENCE, t_quantile
from runner.statistics.monitoring.order_measures import OrderMeasure
from runner.statistics.monitoring.ranked_games import RankedGames, ranked_games

BINS = 10
"""The number of bins of equal width: [0, 0.1), ..., [0.9, 1]."""
LOG_FLOOR = 0.001
"""Probabilities are clipped to [LOG_FLOOR, 1 - LOG_FLOOR], which keeps the score of a single error finite."""
DRAWS = 4_000
TAIL = 0.5 + CONFIDENCE / 2
LEAST_SIZE = 0.05
"""A quantile of the sizes of a calibrated judge; see above."""
DEGREES = 1.5
"""The degrees of freedom for each effective group.

With 1 (Satterthwaite's degrees), intervals of the slope cover up to 98 % at 100 groups; with 2, as few as 92 %.
"""

_NEWTON_STEPS = 50
_CONVERGED = 1e-11
_SINGULAR = 1e12
_LARGEST_LOG_ODDS = 500.0
_LARGEST_SCALE = 1e6
_PRECISION = 1e-4


@dataclass(frozen=True)
class Bin:
    """A point of the reliability curve: the share of right solutions among the games with a P(accept) in this range."""

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
    """At least one P(accept) with its label, as columns. `clusters` has a number below `total` for each game."""

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
        """The mean of -log P(label) divided by its maximum, -log(LOG_FLOOR), so that it is between 0 and 1."""
        label_probabilities = np.clip(np.where(self.y == 1, self.p, 1 - self.p), LOG_FLOOR, 1 - LOG_FLOOR)
        return self._mean(np.log(label_probabilities) / math.log(LOG_FLOOR))

    @property
    def scaled_log_score(self) -> Quantity:
        """The mean of -log P(label) in nats."""
        return self.log_score.as_quantity().rescaled(-math.log(LOG_FLOOR))

    def brier_part(self, name: str) -> Quantity:
        """Return `reliability`, `resolution` or `uncertainty` of the Brier score."""
        value: float = getattr(self, name)
        return Quantity(value, None, getattr(self, f"{name}_interval", None), self.n, self.brier.clusters)

    @property
    def calibration_error(self) -> Quantity:
        """The expected calibration error."""
        return Quantity(self.ece, self.ece_error, self.ece_interval, self.n, self.brier.clusters)

    @property
    def corrected_calibration_error(self) -> Quantity:
        """The expected calibration error without its upward bias."""
        bias = float((np.abs(self._gaps + self._draw_errors(self._gap_residuals)) @ self._weights).mean()) - self.ece
        return self._corrected(self.ece - bias, self._ece_ends)

    @property
    def corrected_reliability(self) -> Quantity:
        """The reliability without its upward bias."""
        bias = float((self._draw_errors(self._gap_residuals) ** 2 @ self._weights).mean())
        return self._corrected(self.reliability - bias, self._reliability_ends)

    def _corrected(self, value: float, ends: Interval) -> Quantity:
        value = max(value, 0.0)
        return Quantity(value, None, (min(ends[0], value), max(ends[1], value)), self.n, self.brier.clusters)

    @property
    def slope(self) -> Quantity:
        """The calibration slope."""
        return self._coefficient(1)

    @property
    def intercept(self) -> Quantity:
        """The calibration intercept, in log odds."""
        return self._coefficient(0)

    def _coefficient(self, index: int) -> Quantity:
        clusters = self.brier.clusters
        if self._recalibration is None:
            reason = "no regression: the probabilities or the labels do not vary, or the labels are separated"
            return Quantity(None, None, None, self.n, clusters, reason)
        coefficients, changes = self._recalibration
        value, squares = float(coefficients[index]), changes[:, index] ** 2
        error = math.sqrt((clusters - 1) / clusters * float(squares.sum()))
        effective = float(squares.sum() ** 2 / (squares**2).sum()) if error else 0.0
        half = t_quantile(min(1 + DEGREES * effective, clusters)) * error if error else math.inf
        return Quantity(value, error, (value - half, value + half), self.n, clusters)

    @cached_property
    def _recalibration(self) -> tuple[Floats, Floats] | None:
        """The intercept and the slope by Newton's method, with their changes without each cluster (the jackknife).

        None if there is no solution, or none without one of the clusters.
        """
        p = np.clip(self.p, LOG_FLOOR, 1 - LOG_FLOOR)
        x = np.column_stack((np.ones(self.n), np.log(p / (1 - p))))
        coefficients = np.zeros(2)
        for _ in range(_NEWTON_STEPS):
            fitted = 1 / (1 + np.exp(-np.clip(x @ coefficients, -_LARGEST_LOG_ODDS, _LARGEST_LOG_ODDS)))
            information = x.T @ (x * (fitted * (1 - fitted))[:, None])
            if np.linalg.cond(information) > _SINGULAR:
                return None
            step = np.linalg.solve(information, x.T @ (self.y - fitted))
            coefficients = coefficients + step
            if np.abs(step).max() < _CONVERGED:
                break
        else:
            return None
        scores, parts = np.zeros((self.total, 2)), np.zeros((self.total, 2, 2))
        np.add.at(scores, self.clusters, x * (self.y - fitted)[:, None])
        np.add.at(parts, self.clusters, np.einsum("ni,nj,n->nij", x, x, fitted * (1 - fitted)))
        remaining = information - parts  # the information without each cluster
        if np.linalg.cond(remaining).max() > _SINGULAR:
            return None
        return coefficients, self._without_balance(np.linalg.solve(remaining, scores[:, :, None])[:, :, 0])

    @property
    def auroc(self) -> Share | None:
        """The area under the ROC curve; None without both labels."""
        return auroc(self.p, self.y, self.clusters, self.total)

    @property
    def auroc_measure(self) -> OrderMeasure | None:
        """The area under the ROC curve for comparisons; None without both labels."""
        return None if (area := self.auroc) is None else OrderMeasure.from_share(area)

    @cached_property
    def ranked_games(self) -> RankedGames | None:
        """The games in the order of their suspicion, 1 - P(accept); None without both labels."""
        return ranked_games(self.p, self.y, self.clusters, self.total)

    def rate_measure(self, rate: float) -> OrderMeasure | None:
        """Return the true positive rate at a false positive rate for comparisons; None if it is unknown."""
        return None if self.ranked_games is None else self.ranked_games.rate_measure(rate)

    def true_positive_rate(self, rate: float) -> Quantity | None:
        """Return the share of attacks that are flagged at a false positive rate; None without both labels."""
        games = self.ranked_games
        if games is None:
            return None
        measure = games.rate_measure(rate)
        if measure is None:
            return Quantity(None, None, None, games.n, games.cluster_count, games.missing_reason(rate))
        return measure.as_quantity()

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
        """The clustered error of ECE if the signs of the gaps are known; too small if gaps are near 0."""
        signed = (self.p - self.y) * np.sign(self._gaps)[self._bin]
        return self._mean(signed).stderr

    @property
    def ece_interval(self) -> Interval:
        """The interval of ECE, which reaches 0 if the judge may be calibrated, and includes the biased estimate."""
        return self._ece_ends[0], max(self._ece_ends[1], self.ece)

    @property
    def reliability_interval(self) -> Interval:
        return self._reliability_ends[0], max(self._reliability_ends[1], self.reliability)

    @cached_property
    def resolution_interval(self) -> Interval:
        """The interval of resolution, from bounds of a norm: inverted tests cover it too rarely with repeats."""
        errors, norm = self._draw_errors(self._lift_residuals), math.sqrt(self.resolution)
        low = norm - float(np.quantile(np.sqrt(errors**2 @ self._weights), TAIL))
        slope = self._weights * self._lifts / norm if norm else np.sqrt(self._weights)
        high = norm + float(np.quantile(-errors @ slope, TAIL))
        return max(low, 0.0) ** 2, min(high, 1.0) ** 2

    @cached_property
    def _ece_ends(self) -> Interval:
        return self._size_interval(np.abs)

    @cached_property
    def _reliability_ends(self) -> Interval:
        return self._size_interval(np.square)

    @cached_property
    def curve(self) -> Sequence[Bin]:
        """The bins that have games."""
        bins = []
        for i in np.flatnonzero(self._counts).tolist():
            inside = self._bin == i
            right = mean_share(self.y[inside].astype(float), self.clusters[inside], self.total)
            assert right is not None
            low, high = right.interval if right.clusters > 1 else (None, None)
            bins.append(Bin(i / BINS, (i + 1) / BINS, right.n, float(self._confidence[i]), right.value, low, high))
        return bins

    def _mean(self, values: Floats) -> Share:
        mean = mean_share(values, self.clusters, self.total)
        assert mean is not None
        return mean

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
    def _gap_residuals(self) -> Floats:
        return self._without_balance(self._residuals_by_cluster(self.p - self.y - self._gaps[self._bin]))

    @cached_property
    def _lift_residuals(self) -> Floats:
        inside = self._residuals_by_cluster(self.y - self._right[self._bin])
        overall = np.bincount(self.clusters, weights=self.y - self._overall, minlength=self.total) / self.n
        return inside - np.where(self._counts > 0, overall[:, None], 0.0)

    def _residuals_by_cluster(self, residuals: Floats) -> Floats:
        """Return the contribution of each cluster to the error of each bin's mean: (cluster, bin)."""
        codes = self.clusters * BINS + self._bin
        sums = np.bincount(codes, weights=residuals, minlength=self.total * BINS).reshape(self.total, BINS)
        return sums / np.maximum(self._counts, 1)

    def _without_balance(self, influence: Floats) -> Floats:
        """Return the contribution of each cluster to an error without the part that its balance of labels explains.

        With any other balance than half and half, the contributions are unchanged.
        """
        surplus = np.bincount(self.clusters, weights=2 * self.y - 1, minlength=self.total)
        if surplus.sum() or not surplus.any():
            return influence
        return influence - np.outer(surplus, surplus @ influence / (surplus @ surplus))

    def _draw_errors(self, influence: Floats) -> Floats:
        """Draw errors of the bins' means from a normal distribution with their clustered covariance: (draw, bin).

        A bin whose games are all right or all wrong gets the error of a share with one more game of each kind.
        """
        present = float(np.count_nonzero(np.bincount(self.clusters, minlength=self.total)))
        covariance = influence.T @ influence * (present / max(present - 1, 1.0))
        smoothed = (self._right * self._counts + 1) / (self._counts + 2)
        clusters = np.bincount(np.unique(self.clusters * BINS + self._bin) % BINS, minlength=BINS)
        constant = (self._right == 0) | (self._right == 1)
        floor = np.where(
            self._counts > 0,
            smoothed * (1 - smoothed) / np.maximum(np.where(constant, clusters, self._counts), 1),
            0,
        )
        missing = np.maximum(floor - np.diag(covariance), 0.0)
        values, vectors = np.linalg.eigh(covariance + np.diag(missing))
        root = vectors * np.sqrt(np.maximum(values, 0.0))
        return np.asarray(_normals() @ root.T)

    def _size_interval(self, measure: Callable[[Any], Any]) -> Interval:
        """Return the interval of the weighted sum of `measure` of the gaps."""
        from scipy.optimize import brentq

        factor = t_quantile(max(self.brier.clusters, 2)) / NormalDist().inv_cdf(TAIL)
        errors = self._draw_errors(self._gap_residuals) * factor

        def solve(direction: Floats, observed: float, tail: float) -> float:
            """Return the size of the true gaps, in this direction, for which `observed` is the quantile `tail`."""

            def excess(scale: float) -> float:
                return float(np.quantile(measure(scale * direction + errors) @ self._weights, tail)) - observed

            if excess(0.0) >= 0:
                return 0.0
            scale = 1.0
            while excess(scale) < 0 and scale < _LARGEST_SCALE:
                scale *= 2
            root = brentq(excess, 0.0, scale, rtol=_PRECISION) if scale < _LARGEST_SCALE else scale
            return self._weighted(measure(root * direction))

        observed = self._weighted(measure(self._gaps))
        least = float(np.quantile(measure(errors) @ self._weights, LEAST_SIZE))
        even = np.where(self._gaps < 0, -1.0, 1.0) * np.sqrt(self._gaps**2 + errors.std(axis=0) ** 2)
        low, high = solve(self._gaps, observed, TAIL), solve(even, max(observed, least), 1 - TAIL)
        return low, min(max(low, high), 1.0)


@cache
def _normals() -> Floats:
    """Return the same draws for every run, so that its numbers can be recomputed anywhere."""
    return np.random.default_rng(0).standard_normal((DRAWS, BINS))


def auroc(p: Floats, y: Codes, clusters: Codes, total: int) -> Share | None:
    """Return P(a right solution has a higher P(accept) than a wrong one), with ties half; None without both labels.

    Mann and Whitney's statistic; its error from structural components summed by cluster (DeLong 1988, Obuchowski 1997).
    """
    right, wrong = np.sort(p[y == 1]), np.sort(p[y == 0])
    if not len(right) or not len(wrong):
        return None
    right_shares = _shares_below(p[y == 1], wrong)  # for each right solution, the share of wrong ones below it
    wrong_shares = 1 - _shares_below(p[y == 0], right)
    value = math.fsum(right_shares) / len(right_shares)
    right_influence = np.bincount(clusters[y == 1], weights=(right_shares - value) / len(right_shares), minlength=total)
    wrong_influence = np.bincount(clusters[y == 0], weights=(wrong_shares - value) / len(wrong_shares), minlength=total)
    influence = np.asarray(right_influence + wrong_influence, dtype=float)
    cluster_count = min(len(np.unique(clusters[y == label])) for label in (0, 1))
    return Share(value, influence, len(p), cluster_count, _effective_size(value, len(right), len(wrong)))


def _effective_size(area: float, right: int, wrong: int) -> float:
    """Return the largest effective sample size, that of independent games (Hanley and McNeil 1982).

    It limits the size that follows from the components, whose spread is almost 0 if hardly any wrong solution ranks
    above a right one.
    """
    first, second = area / (2 - area), 2 * area**2 / (1 + area)
    spread = area * (1 - area) + (right - 1) * (first - area**2) + (wrong - 1) * (second - area**2)
    return area * (1 - area) * right * wrong / spread if spread > 0 else math.inf


def _shares_below(values: Floats, sorted_values: Floats) -> Floats:
    """Return for each value the share of `sorted_values` below it, with ties half."""
    below, not_above = (np.searchsorted(sorted_values, values, side) for side in ("left", "right"))
    shares: Floats = (below + not_above) / (2 * len(sorted_values))
    return shares
