"""Tests whether a predictor tells the label better than chance, with groups as the independent units.

Labels are permuted between groups of the same size, and within groups. A classifier is trained without the group of
the item that it rates. Its rating is linear in the labels (ridge regression), so each permutation repeats the whole
cross-validation at little cost. The interval of an AUC is that of `runner.statistics.calibration.auroc`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from runner.curation.audit.predictors import Floats, Method, Predictor
from runner.statistics.calibration import auroc

Codes = npt.NDArray[np.int64]

FOLDS: Final = 5
TOP_TERMS: Final = 5
FIRST_PERMUTATIONS: Final = 199
CLEARLY_ABOVE_LEVEL: Final = 0.1
_RIDGE: Final = 1.0
"""The ridge penalty, in mean squared lengths of an item's vector of terms."""
_DIGITS: Final = 9
"""Ratings are rounded, so that equal items tie in spite of rounding errors."""


@dataclass(frozen=True)
class LabelTest:
    """How well a predictor tells the label. AUC 0.5 is chance; below 0.5, larger values mean label 0."""

    column: str
    measure: str
    auc: float
    ci_low: float
    ci_high: float
    p: float
    p_holm: float
    terms: tuple[str, ...] = ()
    """The terms with the most weight, if a classifier predicts the label."""
    determines_label: bool = False
    """Whether all items with the same value have the same label, and each value is in several groups."""


class LabelPermutations:
    """The labels and groups of items, with random permutations of the labels that respect the groups."""

    def __init__(self, labels: Sequence[int], groups: Sequence[str], count: int, seed: int) -> None:
        names = {name: code for code, name in enumerate(dict.fromkeys(groups))}
        self.labels: Codes = np.array(labels)
        self.groups: Codes = np.array([names[name] for name in groups])
        self.group_count = len(names)
        self._strata = self._find_strata()
        rng = np.random.default_rng(seed)
        self.folds: Codes = (rng.permutation(self.group_count) % FOLDS)[self.groups]
        self.columns = np.empty((len(labels), count + 1))
        """The labels as they are in the first column, and a permutation in each other column."""
        self.columns[:, 0] = self.labels
        self.expected = np.empty(len(labels))
        """The mean of each item's label over all possible permutations."""
        for members in self._strata:
            self.expected[members] = self.labels[members].mean()
            blocks = np.broadcast_to(self.labels[members], (count, *members.shape))
            if len({*self.labels[members].sum(axis=1)}) > 1:
                order = rng.random(blocks.shape[:2], np.float32).argsort(axis=1)
                blocks = np.take_along_axis(blocks, order[:, :, None], axis=1)
            if members.shape[1] > 1:
                order = rng.random(blocks.shape, np.float32).argsort(axis=2)
                blocks = np.take_along_axis(blocks, order, axis=2)
            self.columns[members.ravel(), 1:] = blocks.reshape(count, -1).T

    def _find_strata(self) -> list[Codes]:
        """Return the indices of the items of all groups of one size, a row for each group."""
        order = np.argsort(self.groups, kind="stable")
        sizes = np.bincount(self.groups)
        starts = np.cumsum(sizes) - sizes
        return [order[starts[sizes == size][:, None] + np.arange(size)] for size in np.unique(sizes)]

    def stages(self) -> Iterator[Floats]:
        """Yield the first permutations, then all. If the first show that p is clearly above the level, they suffice."""
        yield self.columns[:, : FIRST_PERMUTATIONS + 1]
        yield self.columns

    @property
    def min_p(self) -> float:
        """The smallest p-value that is possible: the inverse of the number of distinct permutations."""
        log_count = 0.0
        for members in self._strata:
            counts = self.labels[members].sum(axis=1)
            log_count += math.lgamma(len(counts) + 1) - sum(math.lgamma(n + 1) for n in Counter(counts).values())
            log_count += sum(math.log(math.comb(members.shape[1], int(count))) for count in counts)
        return max(1 / self.columns.shape[1], math.exp(-log_count))

    def is_informative(self, values: npt.NDArray[Any]) -> bool:
        """Return whether permutations can change the association of values with labels.

        They cannot if the values are constant in each group, and all groups of one size have the same labels.
        """
        values = np.unique(values, axis=0, return_inverse=True)[1].ravel()  # a number for each distinct row
        firsts = values[np.unique(self.groups, return_index=True)[1]]
        if (values != firsts[self.groups]).any():
            return True
        return any(
            (values[members[:, 0]] != values[members[0, 0]]).any() and len({*self.labels[members].sum(axis=1)}) > 1
            for members in self._strata
        )


def check_predictor(predictor: Predictor, permutations: LabelPermutations) -> LabelTest:
    """Test one predictor. The p-value of a number is two-sided; that of terms is one-sided."""
    labels = permutations.labels
    if predictor.method is Method.CLASSIFIER:
        scores, p = _check_classifier(_standardize(predictor.values), permutations)
    elif predictor.method is Method.STRONGEST_TERM:
        scores, p = _check_strongest_term(_standardize(predictor.values), permutations)
    else:
        scores = predictor.values
        ranks = rankdata(scores)
        p = _share_as_large(np.abs(ranks @ permutations.columns - ranks @ permutations.expected))
    area = auroc(scores, labels, permutations.groups, permutations.group_count)
    assert area is not None
    terms = _heaviest_terms(predictor, labels) if predictor.terms else ()
    determines = predictor.measure == "value" and bool(predictor.terms) and _determines(predictor.values, labels)
    return LabelTest(predictor.column, predictor.measure, area.value, *area.interval, p, p, terms, determines)


def _standardize(values: Floats) -> Floats:
    scaled: Floats = (values - values.mean(axis=0)) / np.maximum(values.std(axis=0), 1e-12)
    return scaled


def _check_classifier(values: Floats, permutations: LabelPermutations) -> tuple[Floats, float]:
    """Return the cross-validated rating of each item and the p-value of its AUC."""
    weights = _cross_validated_weights(values, permutations.folds)
    for columns in permutations.stages():
        ratings = np.round(weights @ columns, _DIGITS)
        p = _share_as_large((rankdata(ratings, axis=0) * columns).sum(axis=0))
        if p > CLEARLY_ABOVE_LEVEL:
            break
    return ratings[:, 0], p


def _check_strongest_term(values: Floats, permutations: LabelPermutations) -> tuple[Floats, float]:
    """Return the rating of each item by the strongest term of the other folds, and the p-value of the strongest term.

    The p-value is that of the largest correlation of any term with the label, which takes the choice into account.
    """
    for columns in permutations.stages():
        p = _share_as_large(np.abs(values.T @ (columns - permutations.expected[:, None])).max(axis=0))
        if p > CLEARLY_ABOVE_LEVEL:
            break
    ratings = np.zeros(len(values))
    for fold in range(FOLDS):
        test, train = permutations.folds == fold, permutations.folds != fold
        correlations = (permutations.labels - permutations.expected)[train] @ values[train]
        best = int(np.abs(correlations).argmax())
        ratings[test] = np.round(np.sign(correlations[best]) * values[test, best], _DIGITS)
    return ratings, p


def _share_as_large(sums: Floats) -> float:
    """Return the share of sums that are at least the first one, apart from rounding errors."""
    return float((sums >= sums[0] - 1e-9 * max(1.0, abs(sums[0]))).mean())


def _cross_validated_weights(values: Floats, folds: Codes) -> Floats:
    """Return the weight of each item's label in the rating of each item, by ridge regression on the other folds."""
    kernel = values @ values.T
    penalty = _RIDGE * np.trace(kernel) / len(kernel)
    weights = np.zeros(kernel.shape)
    for fold in range(FOLDS):
        test, train = np.flatnonzero(folds == fold), np.flatnonzero(folds != fold)
        regularized = kernel[np.ix_(train, train)] + penalty * np.eye(len(train))
        solved = np.linalg.solve(regularized, kernel[np.ix_(train, test)]).T
        # Labels are centered on the training items, so that the share of a label in a fold does not matter.
        weights[np.ix_(test, train)] = solved - solved.mean(axis=1, keepdims=True)
    return weights


def _heaviest_terms(predictor: Predictor, labels: Codes) -> tuple[str, ...]:
    """Return the terms whose counts are most correlated with the label, in order."""
    correlations = np.abs((labels - labels.mean()) @ _standardize(predictor.values))
    return tuple(predictor.terms[index] for index in np.argsort(-correlations, kind="stable")[:TOP_TERMS])


def _determines(values: Floats, labels: Codes) -> bool:
    """Return whether all items with the same term have the same label."""
    present = values > 0
    right, counts = labels @ present, present.sum(axis=0)
    return bool(present.any(axis=1).all() and ((right == 0) | (right == counts)).all())
