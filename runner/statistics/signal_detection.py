"""Signal detection: how well verdicts separate right from wrong solutions (d'), and the bias of the judge (c).

H is the share of right solutions that are accepted and F that of wrong ones, both among decided games. d' = z(H) -
z(F); c = -(z(H) + z(F)) / 2, above 0 if the judge leans to reject (Macmillan and Creelman 2005). z(0) and z(1) are
infinite, so half a game is added to each count and one to each total (log-linear correction, Hautus 1995). Intervals:
those of H and F (Wilson at the effective sample size) are transformed by z and combined (Zou and Donner 2008).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from runner.statistics.clustered_means import Interval, Share, difference_error, mover_interval
from runner.statistics.differences import Difference, agree_with_test
from runner.statistics.intervals import t_quantile

_NORMAL = NormalDist()


def z(share: float) -> float:
    """Return the quantile of the normal distribution; infinite at 0 and 1."""
    return _NORMAL.inv_cdf(share) if 0 < share < 1 else math.copysign(math.inf, share - 0.5)


def log_linear_share(share: Share) -> float:
    """Return a share with the log-linear correction, so that it is above 0 and below 1."""
    return (share.value * share.n + 0.5) / (share.n + 1)


@dataclass(frozen=True)
class Signal:
    """The shares of right and of wrong solutions that a judge accepts."""

    hits: Share
    false_alarms: Share

    @property
    def sensitivity(self) -> float:
        """d', the separation of right and wrong solutions."""
        return z(log_linear_share(self.hits)) - z(log_linear_share(self.false_alarms))

    @property
    def criterion(self) -> float:
        """c: above 0 if the judge leans to reject, below 0 if it leans to accept."""
        return -(z(log_linear_share(self.hits)) + z(log_linear_share(self.false_alarms))) / 2

    @property
    def sensitivity_interval(self) -> Interval:
        """The interval of d'; an end is infinite if the counts do not limit it."""
        return mover_interval(_on_z(self.hits), _on_z(self.false_alarms), self.hits.correlation(self.false_alarms))

    @property
    def criterion_interval(self) -> Interval:
        """The interval of c; an end is infinite if the counts do not limit it."""
        value, low, high = _on_z(self.false_alarms)
        negated = (-value, -high, -low)  # c = (-z(F) - z(H)) / 2
        ends = mover_interval(negated, _on_z(self.hits), -self.hits.correlation(self.false_alarms))
        return ends[0] / 2, ends[1] / 2

    @property
    def sensitivity_error(self) -> float | None:
        """The clustered standard error of d' by the delta method; None if all or none of a label were accepted."""
        return self._error(1.0, 1.0)

    @property
    def criterion_error(self) -> float | None:
        """The clustered standard error of c, like `sensitivity_error`."""
        return self._error(0.5, -1.0)

    def _error(self, scale: float, sign: float) -> float | None:
        """Return the standard error of scale * (z(H) - sign * z(F))."""
        if self.open_end is not None:
            return None
        first, second = (1 / _NORMAL.pdf(z(log_linear_share(share))) for share in (self.hits, self.false_alarms))
        return difference_error(self.hits, self.false_alarms, scale, (first, sign * second))

    @property
    def open_end(self) -> str | None:
        """The reason why an end of the intervals of d' and c is infinite; None if both ends are finite."""
        extremes = [
            f"{'every' if share.value == 1 else 'no'} {kind} solution was accepted"
            for share, kind in ((self.hits, "right"), (self.false_alarms, "wrong"))
            if share.value in (0, 1)
        ]
        return f"{' and '.join(extremes)}, which leaves an end open" if extremes else None


EXACT_FLIPS = 12
"""The largest number of groups whose 2^n exchanges are all enumerated."""
FLIPS = 10_000
"""The number of random exchanges if there are more groups."""


@dataclass(frozen=True)
class SensitivityDifference:
    """The difference of the d' of two judges on the same datapoints: the second minus the first."""

    first: float
    second: float
    difference: float
    ci_low: float
    ci_high: float
    p: float
    groups: int


def sensitivity_difference(
    first_counts: Sequence[Sequence[int]], second_counts: Sequence[Sequence[int]]
) -> SensitivityDifference | None:
    """Test the difference of two d' by exchanging the judges within groups; None for fewer than two groups.

    For each group, the counts of a judge's decided games have four numbers: accepted right solutions, right solutions,
    accepted wrong solutions, and wrong solutions. The interval is Student's over groups, by the delta method, with half
    an accepted and half a rejected game added for each label, as in d' itself. It contains 0 exactly if the test does
    not reject.
    """
    groups = len(first_counts)
    if groups < 2:
        return None
    first, second = (np.asarray(counts, dtype=float) for counts in (first_counts, second_counts))
    totals = np.stack([first.sum(axis=0), second.sum(axis=0)])
    values = _sensitivities(totals)
    observed = float(values[1] - values[0])
    if groups <= EXACT_FLIPS:
        flips = (np.arange(2**groups)[:, None] >> np.arange(groups)) & 1
    else:
        flips = np.random.default_rng(0).integers(0, 2, (FLIPS, groups))
    moved = flips @ (second - first)
    extreme = np.abs(_sensitivities(totals[1] - moved) - _sensitivities(totals[0] + moved)) >= abs(observed) - 1e-12
    p = float(extreme.mean()) if groups <= EXACT_FLIPS else float((1 + extreme.sum()) / (1 + FLIPS))
    influence = _influence(second, totals[1]) - _influence(first, totals[0])
    squares = float((influence**2).sum()) * groups / (groups - 1) + sum(map(_added_variance, totals))
    half = t_quantile(groups) * math.sqrt(squares)
    effect = Difference(observed, None, observed - half, observed + half, None, groups)
    ends = agree_with_test(effect, p)
    assert ends.low is not None
    assert ends.high is not None
    return SensitivityDifference(float(values[0]), float(values[1]), observed, ends.low, ends.high, p, groups)


def _rates(counts: npt.NDArray[np.floating]) -> tuple[npt.NDArray[np.floating], npt.NDArray[np.floating]]:
    """Return H and F with the log-linear correction, from counts in the last axis."""
    return (counts[..., 0] + 0.5) / (counts[..., 1] + 1), (counts[..., 2] + 0.5) / (counts[..., 3] + 1)


def _sensitivities(counts: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    from scipy.special import ndtri

    hits, false_alarms = _rates(counts)
    return np.asarray(ndtri(hits) - ndtri(false_alarms))


def _slopes(totals: npt.NDArray[np.floating]) -> list[tuple[float, float]]:
    """Return for H and F the rate, and the derivative of d' by the sum of its residuals."""
    rates, games = _rates(totals), (totals[1] + 1, totals[3] + 1)
    return [
        (float(rate), sign / (float(count) * _NORMAL.pdf(z(float(rate)))))
        for rate, count, sign in zip(rates, games, (1, -1), strict=True)
    ]


def _influence(counts: npt.NDArray[np.floating], totals: npt.NDArray[np.floating]) -> npt.NDArray[np.floating]:
    (hits, hit_slope), (false_alarms, false_slope) = _slopes(totals)
    right, wrong = counts[:, 0] - hits * counts[:, 1], counts[:, 2] - false_alarms * counts[:, 3]
    return np.asarray(hit_slope * right + false_slope * wrong)


def _added_variance(totals: npt.NDArray[np.floating]) -> float:
    """Return the variance of the two half games that the correction adds for each label."""
    return sum((slope / 2) ** 2 * ((1 - rate) ** 2 + rate**2) for rate, slope in _slopes(totals))


def _on_z(share: Share) -> tuple[float, float, float]:
    """Return z of a share and of the ends of its interval."""
    low, high = share.interval
    return z(log_linear_share(share)), z(low), z(high)
