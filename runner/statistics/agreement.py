"""Agreement between judges of the same debates: the share of equal verdicts, Cohen's kappa and Krippendorff's alpha.

Kappa (Cohen 1960) is 0 if the judges agree as often as independent judges with the same frequencies of verdicts, and 1
if they always agree. Its standard error follows from the errors of the frequencies (the delta method), summed by
cluster. Its interval comes from the posterior distribution of the table of verdicts, with a prior of `PRIOR` debates
spread evenly over the cells. The number of debates is reduced if the debates of a group resemble each other (the design
effect), or if there are few groups. An interval from the standard error would cover the true value only 89 to 92 % of
the time if nearly all verdicts are equal, because kappa then depends on a few debates.

Alpha (Krippendorff 2004) is the same idea for any number of readers, missing answers, and answers with an order or a
scale. Its interval comes from random weights of groups (the Bayesian bootstrap), with a prior.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np

from runner.statistics.clustered_means import Codes, Floats, Interval, Quantity, Share, mean_share
from runner.statistics.intervals import CONFIDENCE, t_quantile

PRIOR = 1.4
"""The number of debates that the prior is worth.

With fewer, intervals of 40 to 100 groups cover the true value too rarely; with more, intervals of 10 groups do. For 10
debates, intervals cover it 90 % of the time if 1 % of verdicts are unequal, and 88 % if 2 % are unequal and both judges
accept 90 %.
"""
EXTRA_CLUSTERS = 2.5
"""The number of groups that are added to the table to compute its design effect, spread evenly over its cells.

Otherwise the effect would be too small if the sample lacks the few groups whose debates resemble each other.
"""
DRAWS = 4_000
ALPHA_DRAWS = 1_000
ALPHA_PRIOR = 1.0
"""The number of average groups that the prior of alpha is worth. All pairs of answers are equally frequent in it."""
FEWEST_GROUPS, FEWEST_DIFFERENT = 20, 10
"""The minimum numbers of groups, and of groups with another answer than the most frequent one, for alpha's interval."""

Scale = Literal["nominal", "ordinal", "interval"]


@dataclass(frozen=True)
class Agreement:
    """The agreement of two judges."""

    raw: Share
    """The share of debates with equal verdicts."""
    kappa: Quantity


def agreement(
    first_verdicts: Sequence[int] | Codes,
    second_verdicts: Sequence[int] | Codes,
    cluster_numbers: Sequence[int] | Codes,
    total: int,
    sampling_weights: Sequence[float] | Floats | None = None,
) -> Agreement | None:
    """Return the agreement of two judges whose verdicts have the same order; None without verdicts.

    `cluster_numbers` has a number below `total` for each debate. `sampling_weights` are in inverse proportion to the
    probabilities with which debates were drawn.
    """
    first, second, clusters = (np.asarray(codes) for codes in (first_verdicts, second_verdicts, cluster_numbers))
    weights = np.ones(len(first)) if sampling_weights is None else np.asarray(sampling_weights, dtype=float)
    raw = mean_share((first == second).astype(float), clusters, total, weights=weights)
    if raw is None:
        return None
    return Agreement(raw, _kappa(first, second, clusters, weights * (len(first) / weights.sum()), raw))


def _kappa(first: Codes, second: Codes, clusters: Codes, weights: Floats, raw: Share) -> Quantity:
    n, count, verdicts, total = len(first), raw.clusters, np.union1d(first, second), len(raw.influence)
    if len(verdicts) == 1:
        return Quantity(None, None, None, n, count, "both judges always gave the same verdict: kappa is undefined")
    value, influence = _linearize(first, second, weights)
    if count < 2:
        return Quantity(value, None, None, n, count, "a single group of datapoints leaves the error unknown")
    by_cluster = np.bincount(clusters, weights=influence, minlength=total)
    stderr = math.sqrt(count / (count - 1) * math.fsum(by_cluster**2))
    sizes = np.bincount(clusters, weights=weights, minlength=total)
    largest_effect = float((sizes**2).sum()) / n  # the design effect if a group's debates were all equal
    effect = min(max(_design_effect(first, second, clusters, weights, total), 1.0), largest_effect)
    effective = n / effect * (NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) / t_quantile(count)) ** 2
    low, high = _posterior_interval(first, second, weights, effective)
    return Quantity(value, stderr, (min(low, value), max(high, value)), n, count)


def _linearize(first: Codes, second: Codes, weights: Floats) -> tuple[float, Floats]:
    """Return kappa, and the contribution of each debate to its error."""
    verdicts, size = np.union1d(first, second), float(weights.sum())
    shares = np.array([[weights[judge == verdict].sum() / size for verdict in verdicts] for judge in (first, second)])
    equal = first == second
    observed, expected = float(weights[equal].sum() / size), float(shares[0] @ shares[1])
    # Each debate's part in the errors of the observed and of the expected agreement.
    expected_parts = shares[1][np.searchsorted(verdicts, first)] + shares[0][np.searchsorted(verdicts, second)]
    slope = (1 - observed) / (1 - expected) ** 2
    parts = (equal - observed) / (1 - expected) - slope * (expected_parts - 2 * expected)
    return 1 - (1 - observed) / (1 - expected), weights * parts / size


def _design_effect(first: Codes, second: Codes, clusters: Codes, sampling_weights: Floats, total: int) -> float:
    """Return the variance of kappa divided by its variance for independent, equally weighted debates.

    See `EXTRA_CLUSTERS`.
    """
    verdicts = np.union1d(first, second)
    cells, mean_size = len(verdicts) ** 2, len(first) / len(np.unique(clusters))
    weights = np.concatenate((sampling_weights, np.full(cells, EXTRA_CLUSTERS * mean_size / cells)))
    firsts = np.concatenate((first, np.repeat(verdicts, len(verdicts))))
    seconds = np.concatenate((second, np.tile(verdicts, len(verdicts))))
    influence = _linearize(firsts, seconds, weights)[1]
    by_cluster = np.bincount(np.concatenate((clusters, total + np.arange(cells))), weights=influence)
    return math.fsum(by_cluster**2) / math.fsum(influence**2 / weights)


def _posterior_interval(first: Codes, second: Codes, weights: Floats, effective: float) -> Interval:
    """Return the interval of kappa's posterior distribution. The table has `effective` independent debates."""
    verdicts = np.union1d(first, second)
    kinds = len(verdicts)
    cells = np.searchsorted(verdicts, first) * kinds + np.searchsorted(verdicts, second)
    counts = np.bincount(cells, weights, kinds**2) * effective / len(first) + PRIOR / kinds**2
    tables = np.random.default_rng(0).standard_gamma(counts, (DRAWS, kinds**2)).reshape(DRAWS, kinds, kinds)
    tables /= tables.sum(axis=(1, 2), keepdims=True)
    observed = np.trace(tables, axis1=1, axis2=2)
    expected = (tables.sum(axis=1) * tables.sum(axis=2)).sum(axis=1)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(1 - (1 - observed) / (1 - expected), (tail, 1 - tail))
    return float(low), float(high)


@dataclass(frozen=True, eq=False)
class AnswerTable:
    """How often units with each true answer got each answer of a judge."""

    answers: tuple[float, ...]
    counts: Codes
    """True answers in rows and the judge's answers in columns, in the order of `answers`. Weights do not count."""
    base_rates: tuple[Share, ...]
    """The share of units with each true answer."""
    recalls: tuple[Share | None, ...]
    """The share of units with each true answer that the judge finds; None without such units.

    For answers 0 and 1 these are the specificity and the sensitivity.
    """


def answer_table(labels: Floats, answers: Floats, clusters: Codes, weights: Floats | None = None) -> AnswerTable:
    """Return the table of labeled units. All arrays have one entry per unit, and at least one entry.

    `weights` is the number of units that each stands for if labels were drawn by answer
    (`prediction_powered.label_weights`). Without them, recalls would then be wrong.
    """
    kinds, total = np.union1d(labels, answers), int(clusters.max()) + 1
    sizes = np.ones(len(labels)) if weights is None else weights
    counts = np.zeros((len(kinds), len(kinds)), dtype=np.int64)
    np.add.at(counts, (np.searchsorted(kinds, labels), np.searchsorted(kinds, answers)), 1)
    rates, recalls = [], []
    for kind in kinds:
        labelled = labels == kind
        rate = mean_share(labelled.astype(float), clusters, total, weights=sizes)
        assert rate is not None
        rates.append(rate)
        agreeing = (answers[labelled] == kind).astype(float)
        recalls.append(mean_share(agreeing, clusters[labelled], total, weights=sizes[labelled]))
    return AnswerTable(tuple(kinds.tolist()), counts, tuple(rates), tuple(recalls))


def krippendorff_alpha(ratings: Floats, clusters: Codes, scale: Scale = "nominal") -> Quantity:
    """Return Krippendorff's alpha. `ratings` has units in rows and readers in columns, NaN where there is no answer."""
    counts_of_unit = (~np.isnan(ratings)).sum(axis=1)
    pairable = counts_of_unit >= 2
    used, groups = ratings[pairable], np.unique(clusters[pairable], return_inverse=True)[1]
    values = np.unique(used[~np.isnan(used)])
    n, count = len(used), len(np.unique(groups))
    if len(values) < 2:
        reason = "all readers always gave the same answer: alpha is undefined" if n else "no unit has two answers"
        return Quantity(None, None, None, n, count, reason)
    answers = (used[:, :, None] == values).sum(axis=1).astype(float)
    by_group = _coincidences(answers, groups, count)
    alpha = float(_alpha(by_group.sum(axis=0), values, scale))
    frequencies = by_group.sum(axis=2)
    others = np.delete(frequencies, frequencies.sum(axis=0).argmax(), axis=1).sum(axis=1)
    different = int(np.count_nonzero(others))
    if different < FEWEST_DIFFERENT or count < FEWEST_GROUPS:
        reason = (
            f"{different} of {count} groups have another answer than the most frequent one: an interval needs "
            f"{FEWEST_DIFFERENT} of {FEWEST_GROUPS}"
        )
        return Quantity(alpha, None, None, n, count, reason)
    tables = _weighted_tables(by_group)
    draws = _alpha(tables, values, scale)
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(draws, (tail, 1 - tail))
    return Quantity(alpha, float(draws.std()), (min(float(low), alpha), max(float(high), alpha)), n, count)


def _coincidences(answers: Floats, groups: Codes, total: int) -> Floats:
    """Return the table of pairs of answers of each group; a unit with m answers has m * (m - 1) pairs, each 1/(m - 1).

    `answers` has the number of each answer in columns.
    """
    kinds, result = answers.shape[1], np.zeros((total, answers.shape[1], answers.shape[1]))
    pairs = answers[:, :, None] * answers[:, None, :]
    pairs[:, np.arange(kinds), np.arange(kinds)] -= answers  # no answer is a pair with itself
    np.add.at(result, groups, pairs / (answers.sum(axis=1) - 1)[:, None, None])
    return result


def _alpha(tables: Floats, values: Floats, scale: Scale) -> Floats:
    """Return alpha of tables of pairs in the last two dimensions."""
    counts: Floats = tables.sum(axis=-1)
    if scale == "nominal":
        distances = 1.0 - np.eye(len(values))
    else:  # an ordinal answer has the middle of the ranks of its units
        places = values if scale == "interval" else np.cumsum(counts, axis=-1) - counts / 2
        distances = (places[..., :, None] - places[..., None, :]) ** 2
    observed = (tables * distances).sum(axis=(-2, -1))
    expected = (counts[..., :, None] * counts[..., None, :] * distances).sum(axis=(-2, -1))
    return np.asarray(1 - observed / expected * (counts.sum(axis=-1) - 1))


def _weighted_tables(by_group: Floats) -> Floats:
    """Return the table of pairs for random weights of groups, and of the prior, that have the size of the sample."""
    count, kinds, _ = by_group.shape
    size = by_group.sum()
    prior = np.full((1, kinds * kinds), size / count / kinds**2)
    groups = np.concatenate((by_group.reshape(count, -1), prior))
    few = (NormalDist().inv_cdf(0.5 + CONFIDENCE / 2) / t_quantile(count)) ** 2  # widens intervals of few groups
    shapes = few * np.append(np.ones(count), ALPHA_PRIOR)
    tables: Floats = np.random.default_rng(0).standard_gamma(shapes, (ALPHA_DRAWS, count + 1)) @ groups
    tables *= size / tables.sum(axis=1, keepdims=True)
    return tables.reshape(-1, kinds, kinds)
