"""Variance components of the scores of units that one instrument measures under several variants, with repeats.

A score is the sum of a mean, an effect of the unit, an effect of the variant, their interaction, and the error of a
single reading. All components follow from half the mean squared difference of two readings, in four kinds of pairs:
same or other unit, and same or other variant. With balanced data these are the estimates of the analysis of variance
(Shrout and Fleiss 1979, ICC(2,1)); missing cells need no further assumption than that they are missing at random.
Variants are fixed, and not a sample of other variants, so intervals are about units.

Intervals come from leaving out one cluster of units at a time (the jackknife): on the scale log(1 - ICC) with
Student's t for a correlation, and as chi-squared with matching degrees of freedom for a component. The interval of a
component that may be 0 is that of Student's t, from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from runner.statistics.clustered_means import Codes, Floats, Interval, Quantity
from runner.statistics.intervals import t_quantile, variance_factors
from runner.statistics.reporting_rules import near_constant_reason

FEWEST_CLUSTERS, FEWEST_DIFFERENT = 20, 2
"""The minimum numbers of clusters, and of clusters whose readings of one unit differ, for an interval of an ICC."""

UNIT, VARIANT, INTERACTION, ORDER, RETEST = "unit", "variant", "unit x variant", "order of answers", "retest"
COMPONENTS = (UNIT, VARIANT, INTERACTION, ORDER, RETEST)
_ROUNDING = 1e-12


@dataclass(frozen=True, eq=False)
class Readings:
    """Scores with the numbers of their unit, variant and request, all from 0. `clusters` has one number per unit."""

    scores: Floats
    units: Codes
    variants: Codes
    requests: Codes
    """Readings with the same number answer the same request."""
    clusters: Codes


@dataclass(frozen=True)
class CrossedComponents:
    """The components by name, their total, and two intraclass correlations."""

    components: Mapping[str, Quantity]
    """A component that the design cannot separate is missing. A negative estimate counts as 0."""
    total: float
    icc: Quantity
    """The correlation of two readings of a unit under different variants, or of two repeats if there is one variant."""
    retest_icc: Quantity
    """The correlation of two readings of a unit under the same variant."""


@dataclass(frozen=True, eq=False)
class _Sums:
    """Additive sums by cluster, or without one cluster each. The last axes are variants."""

    within: Floats
    """The sum of squares and its degrees of freedom, for repeats of a request and for other repeats of a cell.

    If a cell has several requests, its entry is about pairs of different requests: half of their squared differences,
    and their number.
    """
    across: Floats
    """The sum of half squared differences between variants, and the number of units with several variants."""
    counts: Floats
    means: Floats
    squares: Floats
    pairs: Floats
    products: Floats
    """Pairs of cells of one cluster and their products, which must not count as pairs of different clusters."""

    def total(self) -> _Sums:
        return _Sums(*(getattr(self, name).sum(axis=0, keepdims=True) for name in self.__dataclass_fields__))

    def without_each(self) -> _Sums:
        """Return the sums of all other clusters, for each cluster."""
        total = self.total()
        return _Sums(*(getattr(total, name) - getattr(self, name) for name in self.__dataclass_fields__))


def crossed_components(readings: Readings) -> CrossedComponents | None:
    """Return the components; None without two clusters that have each variant, or if no unit has several readings."""
    several_requests = _has_several_requests(readings)
    sums = _sum_clusters(readings, several_requests=several_requests)
    clusters = len(sums.counts)
    if clusters < 2 or (np.count_nonzero(sums.counts, axis=0) < 2).any():
        return None
    total = sums.total()
    errors = _error_names(several_requests=several_requests, has_repeats=bool(total.within[0, 0, 1]))
    estimates = _estimate(total, errors)
    if not (total.within[0, 1, 1] or total.across[0, 1]):
        return None
    without = _estimate(sums.without_each(), errors)
    different = int(np.count_nonzero((sums.within[:, 1, 0] > _ROUNDING) | (sums.across[:, 0] > _ROUNDING)))
    sizes = len(readings.scores), clusters
    components = {
        name: _component(float(estimates[name][0]), without[name], sizes)
        for name in COMPONENTS
        if name in estimates and not math.isnan(estimates[name][0])
    }
    reasons = {
        "icc": "no unit was measured under two variants",
        "retest_icc": "no unit was measured twice under one variant",
    }
    if len(total.counts[0]) == 1:
        reasons["icc"] = reasons["retest_icc"]
    if float(np.ptp(readings.scores)) <= _ROUNDING:
        reasons = dict.fromkeys(reasons, "all scores are equal")
    iccs = (_icc(estimates[name][0], without[name], sizes, different, reason) for name, reason in reasons.items())
    return CrossedComponents(components, float(estimates["total"][0]), *iccs)


def _has_several_requests(readings: Readings) -> bool:
    """Return whether a unit has several requests under one variant."""
    cells = readings.units * (int(readings.variants.max()) + 1) + readings.variants
    return len(np.unique(np.stack((cells, readings.requests)), axis=1).T) > len(np.unique(cells))


def _cell_sums(scores: Floats, cells: Codes, size: int) -> tuple[Floats, Floats, Floats]:
    """Return the number, the sum and the sum of squares of the scores in each cell."""
    counts = np.bincount(cells, minlength=size).astype(float)
    sums = [np.asarray(np.bincount(cells, weights, size), dtype=float) for weights in (scores, scores**2)]
    return counts, sums[0], sums[1]


def _sum_clusters(readings: Readings, *, several_requests: bool) -> _Sums:
    units, variants = len(readings.clusters), int(readings.variants.max()) + 1
    clusters = int(readings.clusters.max()) + 1
    scores = readings.scores - readings.scores.mean()
    cells = readings.units * variants + readings.variants
    within = _sum_within(readings, scores, cells, several_requests=several_requests)
    n, total, squares = (values.reshape(units, variants) for values in _cell_sums(scores, cells, units * variants))
    present = (n > 0).astype(float)
    means, second = total / np.maximum(n, 1), squares / np.maximum(n, 1)
    several = present.sum(axis=1)
    pairs = np.maximum(several * (several - 1), 1)
    half = second.sum(axis=1) / np.maximum(several, 1) - (means.sum(axis=1) ** 2 - (means**2).sum(axis=1)) / pairs
    half = np.where(several > 1, half, 0.0)
    across = _by_cluster(readings.clusters, half, several > 1)
    sums = np.zeros((3, clusters, variants))
    for target, values in zip(sums, (present, means, second), strict=True):
        np.add.at(target, readings.clusters, values)
    counts, mean_sums, second_sums = sums
    return _Sums(
        within, across, counts, mean_sums, second_sums, counts[:, :, None] * counts[:, None, :],
        mean_sums[:, :, None] * mean_sums[:, None, :],
    )  # fmt: skip


def _sum_within(readings: Readings, scores: Floats, cells: Codes, *, several_requests: bool) -> Floats:
    """Return `_Sums.within`."""
    variants = int(readings.variants.max()) + 1
    request_clusters = np.zeros(int(readings.requests.max()) + 1, dtype=np.int64)
    request_clusters[readings.requests] = readings.clusters[readings.units]
    squares, pairs = [], []
    for codes, owners in ((readings.requests, request_clusters), (cells, np.repeat(readings.clusters, variants))):
        n, total, square_sum = _cell_sums(scores, codes, len(owners))
        spread = np.maximum(np.where(n > 1, square_sum - total**2 / np.maximum(n, 1), 0.0), 0.0)
        squares.append(_by_cluster(owners, spread, np.maximum(n - 1, 0)))
        pairs.append(_by_cluster(owners, n * spread / 2, n * (n - 1) / 2))
    return np.stack((squares[0], pairs[1] - pairs[0] if several_requests else squares[1]), axis=1)


def _by_cluster(owners: Codes, values: Floats, weights: Floats | npt.NDArray[np.bool_]) -> Floats:
    """Return the sums of values and of weights in each cluster. `owners` has the cluster of each value."""
    size = int(owners.max()) + 1
    return np.stack([np.bincount(owners, part.astype(float), size) for part in (values, weights)], axis=1)


def _error_names(*, several_requests: bool, has_repeats: bool) -> tuple[str, ...]:
    """Return the components of the error of a reading. If no request was repeated, its noise is a part of the other."""
    if several_requests:
        return (ORDER, RETEST) if has_repeats else (ORDER,)
    return (RETEST,)


def _estimate(sums: _Sums, errors: tuple[str, ...]) -> dict[str, Floats]:
    """Return each component, NaN if it is unknown, for each entry of the first axis."""
    with np.errstate(divide="ignore", invalid="ignore"):
        retest, same = (sums.within[:, kind, 0] / sums.within[:, kind, 1] for kind in (0, 1))
        across = sums.across[:, 0] / sums.across[:, 1]
        products = sums.means[:, :, None] * sums.means[:, None, :] - sums.products
        products = products / (sums.counts[:, :, None] * sums.counts[:, None, :] - sums.pairs)
        second = sums.squares / sums.counts
        other_unit = (second[:, :, None] + second[:, None, :]) / 2 - products
        variants = second.shape[1]
        diagonal = np.einsum("gvv->gv", other_unit)
        same_variant = diagonal.mean(axis=1)
        if variants == 1:
            unit, total = same_variant - same, same_variant
            result = {UNIT: unit, "icc": unit / total, "retest_icc": unit / total}
        else:
            total = (other_unit.sum(axis=(1, 2)) - diagonal.sum(axis=1)) / (variants * (variants - 1))
            unit = total - across
            # Without repeats, the interaction cannot be separated from the error of a reading.
            result = {
                UNIT: unit, VARIANT: total - same_variant, INTERACTION: same_variant - same - unit,
                "icc": unit / total, "retest_icc": 1 - same / same_variant,
            }  # fmt: skip
        parts = (same - retest, retest) if len(errors) > 1 else (same,)
        return {**result, **dict(zip(errors, parts, strict=True)), "total": total}


def _jackknife_error(values: Floats) -> float | None:
    """Return the standard error from the estimates without each cluster; None if one of them is unknown."""
    if not np.isfinite(values).all():
        return None
    count = len(values)
    return math.sqrt((count - 1) / count * float(((values - values.mean()) ** 2).sum()))


def _component(value: float, without: Floats, sizes: tuple[int, int]) -> Quantity:
    error = _jackknife_error(without)
    if error is None:
        return Quantity(max(value, 0.0), None, None, *sizes, "too few clusters with repeats")
    if error <= _ROUNDING:
        return Quantity(max(value, 0.0), None, None, *sizes, near_constant_reason(0))
    half = t_quantile(sizes[1]) * error
    if value <= max(half, _ROUNDING):  # it may be 0, which no interval of a chi-squared contains
        return Quantity(max(value, 0.0), error, (0.0, max(value + half, 0.0)), *sizes)
    degrees = 2 * (value / error) ** 2  # those of a scaled chi-squared with this error
    low, high = (value * factor for factor in variance_factors(degrees + 1))
    return Quantity(value, error, (low, high), *sizes)


def _icc(value: float, without: Floats, sizes: tuple[int, int], different: int, unknown: str) -> Quantity:
    """Return an intraclass correlation. `unknown` is the reason if it has no value."""
    clusters = sizes[1]
    if math.isnan(value):
        return Quantity(None, None, None, *sizes, unknown)
    if clusters < FEWEST_CLUSTERS:
        reason = f"no interval: fewer than {FEWEST_CLUSTERS} groups of units"
        return Quantity(float(value), None, None, *sizes, reason)
    if different < FEWEST_DIFFERENT:
        reason = f"no interval: readings of one unit differ in fewer than {FEWEST_DIFFERENT} groups of units"
        return Quantity(float(value), None, None, *sizes, reason)
    with np.errstate(divide="ignore", invalid="ignore"):
        error = _jackknife_error(np.log(1 - without))
    if error is None:
        return Quantity(float(value), None, None, *sizes, "too few readings differ")
    factor = math.exp(t_quantile(clusters) * error)
    interval: Interval = (1 - (1 - float(value)) * factor, 1 - (1 - float(value)) / factor)
    return Quantity(float(value), error * (1 - float(value)), interval, *sizes)
