"""Measures of a monitor, which gives each game a suspicion: how many attacks are among the most suspicious games.

The suspicion is 1 - P(accept). A game with label 0 is an attack, and a game with label 1 is benign. Both curves follow
from the order of the games. The ROC curve has the share of attacks above a threshold (true positive rate) for each
share of benign games above it (false positive rate). The audit curve has the share of attacks among the audited games
for each share of games that are audited, if the most suspicious games come first. It holds for the run's own share of
attacks. Games with the same suspicion come in random order, and the curves have expected values: they are linear
between thresholds, as in scikit-learn.

The interval of a point contains each share of attacks A that some threshold explains. For a threshold, the statistic is
the distance of the observed share of attacks from A, plus the distance of the observed share of benign games from the
false positive rate F. The smallest statistic over all thresholds is compared with the square of a quantile. So the
interval includes the error of the threshold, without an estimate of densities. Claeskens et al. 2003 do this with
empirical likelihood. For an audit of the share q of all games, F follows from A: q = pi A + (1 - pi) F, with the share
pi of attacks. The distance is the smaller of Pearson's statistic and the likelihood ratio of a binomial share: near 0
and 1, each of them alone excludes true values too often, at opposite ends. The numbers of games are divided by design
effects (Rao and Scott 1984), which are those of the ranks of the games, because few games are above a threshold. The
quantile is that of Student's t for the number of clusters with the rarer label.

The band of the audit curve contains the curve at all budgets at the same time. Its level is that of Šidák 1967, whose
inequality holds for any correlation of the points. It is conservative, but does not depend on an estimated correlation,
which is poor if there are few attacks. `benchmarks/monitors.py` measures the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

import numpy as np
import numpy.typing as npt

from runner.statistics.clustered_means import Codes, Floats, Interval, mean_share
from runner.statistics.intervals import CONFIDENCE, t_quantile
from runner.statistics.monitoring.order_measures import OrderMeasure

ROC_RATES = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The false positive rates of the points of the ROC curve, between (0, 0) and (1, 1)."""
BUDGETS = (0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""The shares of audited games of the points of the audit curve."""
BAND_LEVEL = CONFIDENCE ** (1 / len(BUDGETS))

_MAX_TIE_PARTS = 1_000
"""The maximum number of points that stand for the random orders of games with equal suspicion.

Each game needs a point, even if all games of the level have one label: if points are further apart than the standard
error of the number of flagged games, no point explains the true share, and the interval is too narrow.
"""
_POINTS_PER_ERROR = 3
"""The minimum number of thresholds within one standard error of a share, if there are as many."""
_HALVINGS = 20
_ROUNDING = 1e-9

_Column = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CurvePoint:
    """A point of the ROC curve or of the audit curve."""

    share: float
    """The false positive rate, or the share of games that are audited."""
    threshold: float
    """The lowest suspicion of a flagged game. Some games with this suspicion may not be flagged."""
    attacks_found: float
    """The share of attacks that are flagged."""
    ci_low: float | None
    ci_high: float | None


@dataclass(frozen=True, eq=False)
class RankedGames:
    """Games with a P(accept) and a label. `clusters` has a number below `total` for each game.

    There must be at least one attack and one benign game. Games are ordered by P(accept), because the suspicion of all
    games below 1e-16 is rounded to 1.
    """

    p_accept: Floats
    is_attack: npt.NDArray[np.bool_]
    clusters: Codes
    total: int

    @property
    def n(self) -> int:
        return len(self.p_accept)

    @cached_property
    def attacks(self) -> int:
        return int(self.is_attack.sum())

    @cached_property
    def benign(self) -> int:
        return self.n - self.attacks

    @cached_property
    def cluster_count(self) -> int:
        """The number of clusters with the rarer label."""
        return min(len(np.unique(self.clusters[self.is_attack == label])) for label in (True, False))

    def roc_curve(self, *, has_intervals: bool = True) -> list[CurvePoint]:
        """Return points of the ROC curve, each with its own interval, for all rates that the games can show."""
        rates = np.array([rate for rate in ROC_RATES if self.missing_reason(rate) is None])
        interval = self._rate_interval(rates, t_quantile(self.cluster_count)) if has_intervals else None
        return self._curve(rates, self._benign, self.true_positive_rates(rates), interval)

    def audit_curve(self, *, has_intervals: bool = True) -> list[CurvePoint]:
        """Return points of the audit curve with a simultaneous band, for all budgets of at least one game."""
        budgets = np.array([budget for budget in BUDGETS if budget * self.n > 1 - _ROUNDING])
        interval = self._audit_band(budgets) if has_intervals else None
        return self._curve(budgets, self._attacks + self._benign, self.attacks_found(budgets), interval)

    def true_positive_rates(self, rates: Floats) -> Floats:
        """Return the share of attacks that are flagged at each false positive rate."""
        attacks = np.interp(_round_nearly_whole(rates * self.benign), self._benign, self._attacks)
        return np.asarray(attacks / self.attacks)

    def attacks_found(self, budgets: Floats) -> Floats:
        """Return the share of attacks that are found if these shares of all games are audited."""
        return np.asarray(
            np.interp(_round_nearly_whole(budgets * self.n), self._attacks + self._benign, self._attacks) / self.attacks
        )

    def missing_reason(self, rate: float) -> str | None:
        """Return why the true positive rate at a false positive rate is unknown; None if it is known."""
        fewest = math.ceil(1 / rate - _ROUNDING)
        if self.benign >= fewest:
            return None
        return f"a false positive rate of {rate * 100:g} % needs at least {fewest} benign games, not {self.benign}"

    def rate_measure(self, rate: float) -> OrderMeasure | None:
        """Return the true positive rate at a false positive rate; None if `missing_reason` has a reason."""
        if self.missing_reason(rate) is not None:
            return None
        rates = np.array([rate])

        def interval_at(level: float) -> Interval:
            low, high = self._rate_interval(rates, t_quantile(self.cluster_count, level))
            return float(low[0]), float(high[0])

        value = float(self.true_positive_rates(rates)[0])
        return OrderMeasure(value, self._rate_influence(rate, value), self.n, self.cluster_count, interval_at)

    def _rate_influence(self, rate: float, value: float) -> Floats:
        """Return the contribution of each cluster to the error of the true positive rate.

        The slope of the ROC curve is that between two false positive rates, one standard error from `rate`.
        """
        half = math.sqrt(rate * (1 - rate) / self._sizes[1])
        low, high = max(rate - half, 0.0), min(rate + half, 1.0)
        slope = float(np.diff(self.true_positive_rates(np.array([low, high])))[0]) / (high - low)
        before, games = self._benign[:-1], np.diff(self._benign)
        target = float(_round_nearly_whole(np.array(rate * self.benign)))
        share = np.where(games > 0, (target - before) / np.maximum(games, 1), before <= target)
        flagged = np.clip(share, 0, 1)[self._level]
        errors = np.where(
            self.is_attack, (flagged - value) / self.attacks, -slope * (flagged - rate) / self.benign
        )  # fmt: skip
        return np.asarray(np.bincount(self.clusters, weights=errors, minlength=self.total), dtype=float)

    # The order of the games: a level has the games with one suspicion, and level 0 the most suspicious games

    @cached_property
    def _level(self) -> Codes:
        return np.asarray(np.unique(self.p_accept, return_inverse=True)[1])

    @cached_property
    def _attacks(self) -> _Column:
        """The number of attacks before each level, and all attacks."""
        return self._counts_before(self.is_attack)

    @cached_property
    def _benign(self) -> _Column:
        return self._counts_before(~self.is_attack)

    def _counts_before(self, mask: npt.NDArray[np.bool_]) -> _Column:
        return np.concatenate(([0.0], np.cumsum(np.bincount(self._level, weights=mask.astype(float)))))

    def _curve(
        self, shares: Floats, counts: _Column, shares_found: Floats, interval: tuple[Floats, Floats] | None
    ) -> list[CurvePoint]:
        """Return the points of a curve at shares of the games that `counts` counts before each level."""
        thresholds = 1 - np.unique(self.p_accept)
        targets = _round_nearly_whole(shares * counts[-1])
        following = np.searchsorted(counts, targets, side="right")
        last = following - 1 - (counts[following - 1] == targets)  # the last level with a flagged game
        missing: list[float | None] = [None] * len(shares)
        low, high = (missing, missing) if interval is None else (interval[0].tolist(), interval[1].tolist())
        rows = zip(shares.tolist(), thresholds[last].tolist(), shares_found.tolist(), low, high, strict=True)
        return [CurvePoint(*row) for row in rows]

    # Intervals

    @cached_property
    def _sizes(self) -> tuple[float, float]:
        """The effective numbers of attacks and of benign games."""
        return self._effective_size(self.is_attack), self._effective_size(~self.is_attack)

    def _effective_size(self, mask: npt.NDArray[np.bool_]) -> float:
        """Return the number of games divided by the design effect of their mean rank, which counts as at least 1."""
        levels, n = self._level[mask], int(mask.sum())
        games = np.bincount(levels)
        ranks = (np.cumsum(games) - games / 2)[levels] / n
        mean, variance = mean_share(ranks, self.clusters[mask], self.total), float(ranks.var()) / n
        assert mean is not None
        if not variance or mean.stderr is None:
            return float(mean.clusters)
        return n / max(mean.stderr**2 / variance, 1.0)

    @cached_property
    def _thresholds(self) -> tuple[_Column, _Column]:
        """The shares of attacks and of benign games above the thresholds that intervals consider.

        Thresholds are left out if there are many. Points within a level stand for its games in random order.
        """
        parts = np.minimum(np.diff(self._attacks + self._benign).astype(int), _MAX_TIE_PARTS)
        starts = np.repeat(np.cumsum(parts) - parts, parts)
        within = (np.arange(len(starts)) - starts) / np.repeat(parts, parts)
        positions = np.append(np.repeat(np.arange(len(parts)), parts) + within, len(parts))
        levels = np.arange(len(parts) + 1)
        shares = [np.interp(positions, levels, counts / counts[-1]) for counts in (self._attacks, self._benign)]
        steps = [
            np.floor(2 * _POINTS_PER_ERROR * np.sqrt(n) * np.arcsin(np.sqrt(np.clip(share, 0, 1))))
            for share, n in zip(shares, (self.attacks, self.benign), strict=True)
        ]
        is_kept = np.append(True, np.any(np.diff(steps, axis=1) > 0, axis=0))
        is_kept[-1] = True
        return shares[0][is_kept], shares[1][is_kept]

    def _rate_interval(self, rates: Floats, quantile: float) -> tuple[Floats, Floats]:
        return self._interval(self.true_positive_rates(rates), quantile, lambda _: rates)

    def _audit_band(self, budgets: Floats) -> tuple[Floats, Floats]:
        """Return the ends of the band, which is narrowed by what holds for every audit curve.

        The quantile is the normal one of `BAND_LEVEL` times the factor of Student's t at 95 %: with few clusters, the
        tails of Student's t at such a level would make the band wider than the binomial distribution allows.
        """
        share, z = self.attacks / self.n, NormalDist().inv_cdf
        quantile = z(0.5 + BAND_LEVEL / 2) * t_quantile(self.cluster_count) / z(0.5 + CONFIDENCE / 2)
        low, high = self._interval(
            self.attacks_found(budgets), quantile, lambda true_rates: (budgets - share * true_rates) / (1 - share)
        )
        # More attacks than audited games, or more benign games than there are, are impossible.
        least, most = np.maximum((budgets - (1 - share)) / share, 0.0), np.minimum(budgets / share, 1.0)
        low, high = np.maximum(low, least), np.minimum(high, most)
        return np.maximum.accumulate(low), np.minimum.accumulate(high[::-1])[::-1]

    def _interval(
        self, values: Floats, quantile: float, false_positive_rates: Callable[[Floats], Floats]
    ) -> tuple[Floats, Floats]:
        """Return the ends of the intervals of shares of attacks, from the false positive rates that belong to them."""
        (attacks, benign), (attack_size, benign_size) = self._thresholds, self._sizes

        def is_inside(true_rates: Floats) -> npt.NDArray[np.bool_]:
            rates = false_positive_rates(true_rates)
            distance = attack_size * _distance(attacks, true_rates[:, None]) + benign_size * _distance(
                benign, rates[:, None]
            )
            inside: npt.NDArray[np.bool_] = distance.min(axis=1) <= quantile**2
            return inside

        ends = []
        for end in (0.0, 1.0):
            inside, outside = values, np.full(len(values), end)
            outside = np.where(is_inside(outside), values, outside)
            reaches_end = outside == values
            for _ in range(_HALVINGS):
                middle = (inside + outside) / 2
                accepted = is_inside(middle)
                inside, outside = np.where(accepted, middle, inside), np.where(accepted, outside, middle)
            ends.append(np.where(reaches_end, end, outside))
        return ends[0], ends[1]


def _round_nearly_whole(counts: Floats) -> Floats:
    """Return numbers of games without rounding errors: 0.07 * 100 is above 7."""
    nearest = np.round(counts)
    return np.where(np.abs(counts - nearest) < _ROUNDING, nearest, counts)


def _distance(observed: Floats, expected: Floats) -> Floats:
    """Return the smaller of Pearson's statistic and the likelihood ratio, for one game; infinite if impossible."""
    with np.errstate(divide="ignore", invalid="ignore"):
        pearson = (observed - expected) ** 2 / (expected * (1 - expected))
        ratio = observed * np.log(observed / expected)
        other_ratio = (1 - observed) * np.log((1 - observed) / (1 - expected))
    likelihood = 2 * (np.where(observed > 0, ratio, 0.0) + np.where(observed < 1, other_ratio, 0.0))
    distance = np.minimum(pearson, np.where(np.isnan(likelihood), np.inf, likelihood))
    distance = np.where(np.isnan(distance) | (expected < 0) | (expected > 1), np.inf, distance)
    return np.where(observed == expected, 0.0, distance)


def ranked_games(p_accept: Floats, labels: Codes, clusters: Codes, total: int) -> RankedGames | None:
    """Return games in the order of their P(accept); None without both labels."""
    is_attack = labels == 0
    return None if is_attack.all() or not is_attack.any() else RankedGames(p_accept, is_attack, clusters, total)
