"""Rates of a run whose units a model judged, corrected with a sample of units that people labeled.

The estimate is prediction-powered inference with power tuning (PPI++; Angelopoulos, Duchi and Zrnic 2023, arXiv
2311.01453): the mean label, plus `tuning` times the difference between the model's mean on the other units and its mean
on the labeled units. `tuning` is 0 if the model's values say nothing about the labels; then the labels alone count.

The error sums the influences of all units of a group, labeled or not. The interval is Wilson's at the effective sample
size, with Student's t over the groups that have labels. Without its skew, intervals of 50 labels at a rate of 0.1 would
cover the true value only 85 to 91 % of the time. `benchmarks/corrected_rates.py` measures the coverage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from runner.statistics.clustered_means import Codes, Floats, Interval, Quantity, Share, difference, mean_share
from runner.statistics.intervals import wilson_interval

_ROUNDING = 1e-12

FEWEST_LABELS = 20
FEWEST_GROUPS = 5
"""The minimum numbers of labels and of groups with labels for an estimate.

With 20 labels and a base rate of 0.1, one sample in eight has no positive label, so that nothing shows how the model
treats positive units. Intervals over fewer than five groups were not measured (`reporting_rules.FEWEST_OF_ANY`).
"""
PRIOR = 1.0
"""The number of units per stratum that are added to the labels to compute their error.

They are spread evenly over the lowest and highest label and model value. Otherwise the error would be too small if the
labels contain no error of the model by chance.
"""


@dataclass(frozen=True, eq=False)
class TunedEstimate:
    """The estimate of PPI++. Influences of units add up to the influences of groups."""

    value: float
    tuning: float
    """The factor lambda of the model's values, from 0 to 1."""
    influence: Floats
    """The contribution of each unit to the error; the sum of their squares is the variance for independent units."""
    prior_variance: float
    """The variance that the `PRIOR` adds."""


@dataclass(frozen=True)
class JudgeAccuracy:
    """The accuracy of a model's answers, from which `labels_needed` computes the number of labels."""

    rate: float
    """The rate to estimate, or a mean on the scale from 0 to 1."""
    variance: float
    """The variance of a label: rate * (1 - rate) if labels are 0 or 1."""
    explained: float
    """The share of this variance that the model's values explain: their squared correlation with the labels."""
    lasting: float
    """The part of the estimate's variance that remains if all units are labeled, because the run is a sample itself."""
    units: int
    groups: int
    pairs: float = 0.0
    """The probability that two units, chosen at random, are from the same group."""
    resemblance: float = 0.0
    """The correlation of the labels of two units of a group, after the explained part is removed."""

    @classmethod
    def from_guess(
        cls, rate: float, agreement: float, units: int, groups: int, resemblance: float = 0.0
    ) -> JudgeAccuracy:
        """Return the accuracy of a model with this share of right answers, as many of them too high as too low."""
        variance, pairs = rate * (1 - rate), (units / groups - 1) / max(units - 1, 1)
        explained = max(1 - (1 - agreement) / (2 * variance), 0.0) ** 2
        lasting = explained * variance * (1 / units + resemblance * pairs)
        return cls(rate, variance, explained, lasting, units, groups, pairs, resemblance)

    def predicted_width(self, labels: int) -> float:
        """Return the width of the interval with this many labels, chosen at random."""
        remaining = (1 - self.explained) * self.variance * (1 / labels + self.resemblance * self.pairs)
        groups = max(round(self.groups * -math.expm1(-labels / self.groups)), 2)  # expected number with labels
        error = math.sqrt(remaining + self.lasting + PRIOR * self.variance / labels**2)
        low, high = wilson_interval(self.rate, error, math.inf, groups)
        return high - low


@dataclass(frozen=True, eq=False)
class CorrectedRate:
    """A rate by the labels and the model's values together, next to the rates by one of them alone."""

    corrected: Quantity
    """`n` is the number of labels, `clusters` the number of groups with labels."""
    labels_alone: Quantity
    plain: Quantity
    """The rate that takes the model's values for the truth. `n` is the number of units."""
    tuning: float = 0.0
    """The factor lambda of the model's values, from 0 (the labels alone count) to 1."""
    share: Share | None = None
    """The corrected rate on the scale from 0 to 1; the last entry of its influence is the part of the prior."""
    scale: float = 1.0


def corrected_rate(
    labels: Floats | Sequence[float],
    model_values: Floats | Sequence[float],
    clusters: Codes | Sequence[int],
    strata: Codes | Sequence[int] | None = None,
    *,
    ends: Interval = (0.0, 1.0),
) -> CorrectedRate:
    """Return the rate, or mean, of all units. All arrays have one entry per unit.

    `labels` is NaN where nobody labeled a unit. `strata` has a number for each unit if the labels were drawn separately
    from parts of the units, such as one part for each answer of the model; labels are random within a stratum. Two runs
    that are compared need the same numbers of `clusters`. `ends` are the lowest and highest possible value.

    Raises:
        ValueError: a label or value is outside `ends`, or there are no units.
    """
    low, scale = ends[0], ends[1] - ends[0]
    y, f = ((np.asarray(values, dtype=float) - low) / scale for values in (labels, model_values))
    codes, labeled = np.asarray(clusters), ~np.isnan(y)
    parts = _number_strata(strata, len(f))
    if not len(f) or not (_are_shares(f) and _are_shares(y[labeled])):
        raise ValueError(f"corrected_rate needs at least one unit, and labels and model values in {ends}")
    plain = mean_share(f, codes, int(codes.max()) + 1)
    assert plain is not None
    count, groups = int(labeled.sum()), _count_groups(codes[labeled])
    if reason := _missing_reason(labeled, parts, groups):
        nothing = Quantity(None, None, None, count, groups, reason)
        return CorrectedRate(nothing, nothing, plain.as_quantity().rescaled(scale, low), scale=scale)
    estimate, untuned = tuned_estimate(y, f, parts), tuned_estimate(y, np.zeros_like(f), parts)
    alone = _share(untuned, codes, count, groups)
    share = _limit_error(_share(estimate, codes, count, groups), alone)
    if strata is None:  # the prior is for small strata and for rare errors of the model
        alone = _share(replace(untuned, prior_variance=0.0), codes, count, groups)
    corrected, by_labels, by_model = (each.as_quantity().rescaled(scale, low) for each in (share, alone, plain))
    return CorrectedRate(corrected, by_labels, by_model, estimate.tuning, share, scale)


def corrected_difference(first: CorrectedRate, second: CorrectedRate) -> Quantity:
    """Return the difference of two corrected rates with equal `ends`, whose groups have the same numbers.

    The errors of runs with common groups are correlated, which the interval takes into account (MOVER).
    """
    if first.share is None or second.share is None:
        missing = first.corrected if first.share is None else second.corrected
        labels = first.corrected.n + second.corrected.n
        groups = min(first.corrected.clusters, second.corrected.clusters)
        return Quantity(None, None, None, labels, groups, missing.reason)
    size = max(len(first.share.influence), len(second.share.influence)) + 1
    shares = []
    for place, share in enumerate((first.share, second.share)):  # each prior has its own entry: they are independent
        influence = np.zeros(size)
        influence[: len(share.influence) - 1] = share.influence[:-1]
        influence[size - 2 + place] = share.influence[-1]
        shares.append(replace(share, influence=influence))
    return difference(*shares).rescaled(first.scale)


def measure_accuracy(
    labels: Floats, model_values: Floats, clusters: Codes, strata: Codes | None = None
) -> JudgeAccuracy | None:
    """Return the accuracy of the model on the labels so far; None with too few labels for a corrected rate.

    The arrays are those of `corrected_rate`, from 0 to 1.
    """
    labeled, units, parts = ~np.isnan(labels), len(labels), _number_strata(strata, len(labels))
    if _missing_reason(labeled, parts, _count_groups(clusters[labeled])):
        return None
    rate = tuned_estimate(labels, model_values, parts).value
    weights = label_weights(labels, strata) / units
    y, f = (values - weights @ values for values in (labels[labeled], model_values[labeled]))
    variance, model_variance, covariance = (float(weights @ product) for product in (y * y, f * f, y * f))
    slope = max(covariance, 0.0) / model_variance if model_variance > _ROUNDING else 0.0
    explained = slope * covariance / variance if variance > _ROUNDING else 0.0
    explained = max(1 - (1 - explained) * (len(y) - 1) / (len(y) - 2), 0.0)  # adjusted for the fitted slope
    errors = y - slope * f
    pair_weights, pair_errors = (
        float((np.bincount(clusters[labeled], weights=values) ** 2).sum() - values @ values)
        for values in (weights, weights * errors)
    )
    spread = pair_weights * float(weights @ errors**2)
    resemblance = min(max(pair_errors / spread, 0.0), 1.0) if spread > _ROUNDING else 0.0
    sizes = np.bincount(clusters)
    pairs = float((sizes * (sizes - 1.0)).sum()) / (units * max(units - 1, 1))
    groups, model = int(np.count_nonzero(sizes)), mean_share(model_values, clusters, len(sizes))
    lasting = (slope * ((model and model.stderr) or 0.0)) ** 2
    return JudgeAccuracy(min(max(rate, 0.0), 1.0), variance, explained, lasting, units, groups, pairs, resemblance)


def label_weights(labels: Floats, strata: Codes | None = None) -> Floats:
    """Return for each label, in the order of the units, the number of units that it stands for."""
    labeled, parts = ~np.isnan(labels), _number_strata(strata, len(labels))
    return (np.bincount(parts) / np.maximum(np.bincount(parts[labeled], minlength=parts.max() + 1), 1))[parts[labeled]]


def labels_needed(width: float, accuracy: JudgeAccuracy) -> int | None:
    """Return the smallest number of labels whose interval is at most this wide; None if all units are too few.

    `width` is on the scale from 0 to 1.
    """
    lowest, highest = FEWEST_LABELS, accuracy.units
    if highest < lowest or accuracy.predicted_width(highest) > width:
        return None
    while lowest < highest:
        middle = (lowest + highest) // 2
        lowest, highest = (lowest, middle) if accuracy.predicted_width(middle) <= width else (middle + 1, highest)
    return lowest


def tuned_estimate(labels: Floats, model_values: Floats, strata: Codes) -> TunedEstimate:
    """Return the estimate of PPI++ in each stratum, weighted by the strata's numbers of units.

    `labels` is NaN where there is none; each stratum has a label. All strata share the `tuning` with the smallest error
    for independent units. With one stratum this is `ppi_py.ppi_mean_pointestimate`.
    """
    labeled, weights = ~np.isnan(labels), np.bincount(strata) / len(strata)
    y, f, rest = labels[labeled], model_values[labeled], model_values[~labeled]
    inside, outside = strata[labeled], strata[~labeled]
    n, others = (np.bincount(part, minlength=len(weights)) for part in (inside, outside))
    y_mean, f_mean = (np.bincount(inside, values) / n for values in (y, f))
    has_others = others > 0
    rest_mean = np.bincount(outside, rest, len(weights)) / np.maximum(others, 1)
    total_mean = np.bincount(strata, model_values) / (n + others)
    covariance = np.bincount(inside, (y - y_mean[inside]) * (f - f_mean[inside])) / n
    variance = np.bincount(strata, (model_values - total_mean[strata]) ** 2) / np.maximum(n + others - 1, 1)
    gain = (weights**2 * covariance / n)[has_others].sum()
    cost = (weights**2 * variance * (1 / n + 1 / np.maximum(others, 1)))[has_others].sum()
    tuning = float(np.clip(gain / cost, 0, 1)) if cost > _ROUNDING else 0.0
    factors = np.where(has_others, tuning, 0.0)
    means = y_mean + factors * (rest_mean - f_mean)
    value = float(weights @ means)
    influence = (means - value)[strata] / len(strata)
    residuals = y - y_mean[inside] - factors[inside] * (f - f_mean[inside])
    influence[labeled] += (weights / n)[inside] * residuals
    influence[~labeled] += (factors * weights / np.maximum(others, 1))[outside] * (rest - rest_mean[outside])
    return TunedEstimate(
        value, tuning, influence, _prior_variance(model_values, strata, (y_mean, f_mean), factors, weights / n)
    )


def _prior_variance(f: Floats, strata: Codes, means: tuple[Floats, Floats], factors: Floats, weights: Floats) -> float:
    """Return the variance that the `PRIOR` adds; `weights` has the weight of a label in each stratum."""
    total = 0.0
    for stratum, (y_mean, f_mean) in enumerate(zip(*means, strict=True)):
        values = f[strata == stratum]
        for corner, label in product((values.min(), values.max()), (0.0, 1.0)):
            residual = label - y_mean - factors[stratum] * (corner - f_mean)
            total += PRIOR / 4 * float(weights[stratum] * residual) ** 2
    return total


def _share(estimate: TunedEstimate, clusters: Codes, count: int, groups: int) -> Share:
    """Return the estimate with the influences of groups. `count` labels are in `groups` groups."""
    value = min(max(estimate.value, 0.0), 1.0)
    influence = np.append(np.bincount(clusters, weights=estimate.influence), math.sqrt(estimate.prior_variance))
    # At 0 and 1, Wilson's interval counts groups, as if there were no error.
    return Share(value, influence if 0 < value < 1 else np.zeros_like(influence), count, groups)


def _limit_error(share: Share, alone: Share) -> Share:
    """Return the share with an effective sample size of at least that of the labels alone.

    The correction may move the value next to 0 or 1, where the variance of a share is small, but not its error.
    """
    error, alone_error = share.stderr, alone.stderr
    if not error:
        return share
    independent = alone.value * (1 - alone.value) / alone.clusters
    effect = alone_error**2 / independent if alone_error and independent else 1.0
    largest = math.sqrt(share.value * (1 - share.value) / share.clusters * effect)
    return replace(share, influence=share.influence * min(1.0, largest / error))


def _count_groups(clusters: Codes) -> int:
    return int(np.count_nonzero(np.bincount(clusters)))


def _number_strata(strata: Codes | Sequence[int] | None, units: int) -> Codes:
    """Return the strata as consecutive numbers from 0."""
    return np.zeros(units, dtype=np.int64) if strata is None else np.unique(strata, return_inverse=True)[1]


def _missing_reason(labeled: Codes, strata: Codes, groups: int) -> str | None:
    count = int(labeled.sum())
    if count < FEWEST_LABELS:
        return f"{count} labels: an estimate needs at least {FEWEST_LABELS}"
    if groups < FEWEST_GROUPS:
        return f"labels in {groups} groups of datapoints: an estimate needs at least {FEWEST_GROUPS}"
    empty = int(np.count_nonzero(np.bincount(strata[labeled], minlength=strata.max() + 1) == 0))
    return f"{empty} strata have no labels: label at least one unit of each" if empty else None


def _are_shares(values: Floats) -> bool:
    return bool(((values >= 0) & (values <= 1)).all())
