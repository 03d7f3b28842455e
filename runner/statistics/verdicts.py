"""Shares of verdicts by label, datapoint and group, and from blocks that play each datapoint in several forms.

Games are columns of one length. A decision is 0 (reject), 1 (accept) or 2 (none); a label and a stance are 0 or 1; -1
means that a game has no stance or no seats to exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from runner.statistics.calibration import LOG_FLOOR
from runner.statistics.clustered_means import (
    Codes,
    Floats,
    Quantity,
    Share,
    combined_counts,
    difference,
    difference_error,
    difference_interval,
    mean_share,
)
from runner.statistics.signal_detection import Signal

Mask = npt.NDArray[np.bool_]
NONE, UNSET = 2, -1
LEAST_PLAYS = 5
"""The number of plays of every datapoint that the accuracy of the worst one needs."""
ONE_STANCE = "seat and stance are one here: add stances: both"
"""The reason why a run has no position bias."""
MOST_VOTES = 99
"""The largest panel in vote@k: datapoints may be played thousands of times, but such large panels are unrealistic."""

EXACT_PLAYS = 100
"""The largest number of plays whose probability of a majority is computed by enumeration, in integers."""

ENOUGH_PLAYED = 0.9
"""The share of datapoints that must have the plays that vote@k needs: some rollouts may be lost."""


@dataclass(frozen=True, eq=False)
class Verdicts:
    """At least one decided or undecided game, as columns. A cluster has one or more datapoints."""

    labels: Codes
    decisions: Codes
    points: Codes
    """The number of each game's datapoint, from 0."""
    clusters: Codes
    """The number of each game's cluster, from 0."""
    total: int
    """The number of clusters."""
    grouped: bool
    """Whether a cluster has several datapoints, which may balance each other."""
    stances: Codes | None = None
    """The stance that all provers argue for, in blocks that play each datapoint with both stances."""
    swapped: Codes | None = None
    """Whether two seats have exchanged their models, in blocks that play each datapoint both ways: 0 or 1."""
    exchanged: Codes | None = None
    """Whether opposed provers have exchanged their stances, in blocks that play each datapoint both ways: 0 or 1."""

    @cached_property
    def right(self) -> Mask:
        return np.asarray(self.decisions == self.labels)

    def of(self, values: Mask | Floats, where: Mask | None = None) -> Share | None:
        """Return the mean of the games' values, over all games or over the games of a mask."""
        mask = np.ones(len(self.labels), bool) if where is None else where
        selected = np.asarray(values, float)[mask]
        return mean_share(selected, self.clusters[mask], self.total, cap=math.inf if self.grouped else len(selected))

    def accepted(self, label: int, *, decided: bool = False) -> Share | None:
        """Return P(accept | label): completeness for 1, soundness error for 0; of all games or of decided ones."""
        where = self.labels == label
        return self.of(self.decisions == 1, where & (self.decisions != NONE) if decided else where)

    def undecided(self, label: int) -> Share | None:
        return self.of(self.decisions == NONE, self.labels == label)

    def correct(self, label: int) -> Share | None:
        """Return P(right | label); an undecided game is not right."""
        return self.of(self.right, self.labels == label)

    # From both labels

    @property
    def balanced_accuracy(self) -> Quantity | None:
        """(P(right | 1) + P(right | 0)) / 2; None without games of both labels."""
        right, wrong = self.correct(1), self.correct(0)
        if right is None or wrong is None:
            return None
        rejected_wrong = Share(1 - wrong.value, -wrong.influence, wrong.n, wrong.clusters, wrong.cap)
        low, high = difference_interval(right, rejected_wrong)
        ends = max(0.0, (1 + low) / 2), min(1.0, (1 + high) / 2)
        value, error = (right.value + wrong.value) / 2, difference_error(right, rejected_wrong, 0.5)
        return Quantity(value, error, ends, *combined_counts(right, wrong))

    @cached_property
    def _signal(self) -> Signal | None:
        hits, false_alarms = self.accepted(1, decided=True), self.accepted(0, decided=True)
        return None if hits is None or false_alarms is None else Signal(hits, false_alarms)

    @property
    def sensitivity(self) -> Quantity | None:
        """D' (see `runner.statistics.signal_detection`) of decided games; None without decided games of both labels."""
        if (signal := self._signal) is None:
            return None
        counts = combined_counts(signal.hits, signal.false_alarms)
        interval = signal.sensitivity_interval
        return Quantity(signal.sensitivity, signal.sensitivity_error, interval, *counts, signal.open_end)

    @property
    def criterion(self) -> Quantity | None:
        """C (see `runner.statistics.signal_detection`) of decided games; None without decided games of both labels."""
        if (signal := self._signal) is None:
            return None
        counts = combined_counts(signal.hits, signal.false_alarms)
        return Quantity(signal.criterion, signal.criterion_error, signal.criterion_interval, *counts, signal.open_end)

    # By datapoint

    @property
    def lowest_accuracy(self) -> float:
        """The lowest accuracy of a datapoint."""
        return float((np.bincount(self.points, weights=self.right) / np.bincount(self.points)).min())

    @property
    def worst_datapoint(self) -> Quantity:
        """The lowest accuracy of a datapoint; without a value if so few plays make it a matter of luck."""
        plays = np.bincount(self.points)
        if plays.min() < LEAST_PLAYS:
            reason = f"a datapoint was played fewer than {LEAST_PLAYS} times: the lowest mean is luck"
            return Quantity(None, None, None, len(self.points), len(plays), reason)
        return Quantity(self.lowest_accuracy, None, None, len(self.points), len(plays))

    @property
    def always_failed(self) -> Quantity | None:
        """The share of datapoints without a right game."""
        failed = self._failed_points
        most_plays = int(np.bincount(self.points).max(initial=0))
        return None if failed is None else failed.as_quantity(most_plays)

    @cached_property
    def _failed_points(self) -> Share | None:
        points, indices = np.unique(self.points, return_inverse=True)
        rights = np.bincount(indices, weights=self.right, minlength=len(points))
        return self._by_unit(rights == 0, indices)

    def vote_at(self, k: int) -> Share | None:
        """Return vote@k: how often the majority of k plays of a datapoint is right; None if no datapoint has k plays.

        The value of a datapoint is the mean over all choices of k of its plays, which is unbiased for any number of
        plays (the hypergeometric distribution). Datapoints with fewer plays are left out. The rule is that of a panel's
        votes: the verdict of the majority of decided plays. In a tie the first vote counts, which is right in half of
        all orders; without a decided play there is no verdict. If blocks exchange stances or seats, each form that was
        played counts separately.
        """
        play_kinds = self._play_kinds
        counts = [
            np.bincount(play_kinds, weights=column, minlength=len(self._play_counts)).astype(np.int64)
            for column in (self.right, ~self.right & (self.decisions != NONE), self.decisions == NONE)
        ]
        enough = self._play_counts >= k
        if not enough.any():
            return None
        distinct, inverse = np.unique(np.stack(counts)[:, enough], axis=1, return_inverse=True)
        values = np.array([majority_chance(right, wrong, none, k) for right, wrong, none in distinct.T.tolist()])
        clusters = np.zeros(len(self._play_counts), dtype=np.int64)
        clusters[play_kinds] = self.clusters
        selected = values[inverse.reshape(-1)]
        return mean_share(selected, clusters[enough], self.total, cap=math.inf if self.grouped else len(selected))

    @cached_property
    def votes(self) -> list[tuple[int, Share]]:
        """vote@k for odd k up to `MOST_VOTES`, if nine in ten datapoints have k plays; empty if there is only k = 1."""
        largest = min(int(self._play_counts.max(initial=0)), MOST_VOTES)
        sizes = [k for k in range(1, largest + 1, 2) if np.mean(self._play_counts >= k) >= ENOUGH_PLAYED]
        votes = ((k, self.vote_at(k)) for k in sizes if sizes != [1])
        return [(k, vote) for k, vote in votes if vote is not None]

    @property
    def majority_accuracy(self) -> Quantity | None:
        """vote@k for the largest k; None if datapoints were not played three times."""
        if not self.votes:
            return None
        k, vote = self.votes[-1]
        return vote.as_quantity(k)

    @cached_property
    def _play_counts(self) -> Codes:
        return np.asarray(np.bincount(self._play_kinds))

    @cached_property
    def _play_kinds(self) -> Codes:
        """The number of each game's kind. Games with the same datapoint, stances and seats are of one kind."""
        codes = self.points * 27
        for times, column in ((9, self.exchanged), (3, self.stances), (1, self.swapped)):
            codes = codes if column is None else codes + times * (column + 1)
        kinds: Codes = np.unique(codes, return_inverse=True)[1]
        return kinds

    def _by_unit(self, values: Mask, units: Codes) -> Share | None:
        """Return the mean of one value for each unit, such as a datapoint. `units` has the unit of each game."""
        clusters = np.zeros(len(values), dtype=np.int64)
        clusters[units] = self.clusters
        cap = math.inf if self.grouped else len(values)
        return mean_share(values.astype(float), clusters, self.total, cap=cap)

    # By group

    @cached_property
    def pair_score(self) -> Share | None:
        """How often a right version is accepted and a wrong one is rejected, over groups that have both.

        The value of a group is the share of all pairs of a right and a wrong version's game; groups count alike. None
        if no group has both versions.
        """
        counts = [np.bincount(self.clusters[self.labels == label], minlength=self.total) for label in (0, 1)]
        rights = [np.bincount(self.clusters[self.right & (self.labels == y)], minlength=self.total) for y in (0, 1)]
        both = np.flatnonzero((counts[0] > 0) & (counts[1] > 0))
        values = (rights[0][both] / counts[0][both]) * (rights[1][both] / counts[1][both])
        cap = int(np.minimum(counts[0], counts[1])[both].sum())
        return mean_share(values, both, self.total, cap=cap)

    # From blocks

    def played_with_both(self, column: Codes) -> Mask:
        """Return a mask of the games whose datapoint was played with both values of a column that a block exchanges."""
        size = int(self.points.max(initial=0)) + 1
        played = [np.bincount(self.points[column == value], minlength=size) > 0 for value in (0, 1)]
        is_played_with_both: Mask = (played[0] & played[1])[self.points] & (column != UNSET)
        return is_played_with_both

    def persuaded(self, stance: int) -> Share | None:
        """Return P(verdict = stance | all provers argue for it), over datapoints that were played with both stances."""
        if self.stances is None:
            return None
        both = self.played_with_both(self.stances)
        return self.of(self.decisions == stance, both & (self.stances == stance))

    @property
    def is_played_in_blocks(self) -> bool:
        """Whether blocks exchange stances or seats."""
        return any(column is not None for column in (self.stances, self.swapped, self.exchanged))

    @cached_property
    def whole_blocks(self) -> Mask:
        """A mask of the games whose datapoints were played with all that their blocks exchange."""
        keep = np.ones(len(self.labels), bool)
        for column in (self.stances, self.swapped, self.exchanged):
            if column is not None:
                keep &= self.played_with_both(column)
        return keep

    def select(self, mask: Mask) -> Verdicts:
        """Return the games of a mask."""
        names = ("labels", "decisions", "points", "clusters", "stances", "swapped", "exchanged")
        return replace(self, **{name: column[mask] for name in names if (column := getattr(self, name)) is not None})

    @property
    def swap_effect(self) -> Quantity | None:
        """P(accept) with the seats of the spec minus P(accept) with swapped seats; None without swapped seats."""
        if self.swapped is None:
            return None
        written, swapped = (self.of(self.decisions == 1, self.swapped == value) for value in (0, 1))
        return None if written is None or swapped is None else difference(written, swapped)

    def position_bias(self, first: Codes | None) -> Quantity | None:
        """Return P(verdict = stance of the first seat) - P(verdict = stance of the other).

        `first` has the stance of the first prover in each game, None if provers do not oppose each other. If each seat
        always argues the same stance, the bias cannot be separated from a leaning to accept and has no value.
        """
        if first is None:
            return None
        if self.exchanged is None:
            return Quantity(None, None, None, len(self.labels), len(set(self.clusters.tolist())), ONE_STANCE)
        for_it, against = self._accepted_by_first_stance(first)
        return None if for_it is None or against is None else difference(for_it, against)

    def agreement(self, stances: Codes) -> Share | None:
        """Return P(verdict = stance), for the stance of one player or seat in each game."""
        return self.of(self.decisions == stances)

    def agreement_gain(self, stances: Codes) -> Quantity | None:
        """Return P(verdict = stance) if the stance is the label, minus that if it is not."""
        won = self.decisions == stances
        honest, dishonest = (self.of(won, (stances == self.labels) == is_true) for is_true in (True, False))
        return None if honest is None or dishonest is None else difference(honest, dishonest)

    # Of log-probabilities

    def log_probability_gain(self, stances: Codes, p: Floats) -> Quantity | None:
        """Return the mean of ln P(verdict = stance) if the stance is the label, minus that if it is not, in nats."""
        probabilities = np.clip(np.where(stances == 1, p, 1 - p), LOG_FLOOR, 1 - LOG_FLOOR)
        scores = 1 - np.log(probabilities) / math.log(LOG_FLOOR)
        is_known, is_true = ~np.isnan(p), stances == self.labels
        masks = [is_known & (is_true == value) for value in (True, False)]
        # No cap: the number of games limits the effective sample size of zeros and ones, but these scores vary less.
        honest, dishonest = (mean_share(scores[mask], self.clusters[mask], self.total) for mask in masks)
        if honest is None or dishonest is None:
            return None
        return difference(honest, dishonest).rescaled(-math.log(LOG_FLOOR))

    def bounds(self, p: Floats, bound: Codes | None) -> Share | None:
        """Return the share of known probabilities that are only bounds."""
        return None if bound is None else self.of(bound == 1, ~np.isnan(p))

    def without_score(self, p: Floats) -> Share | None:
        """Return the share of games whose probability is unknown."""
        return self.of(np.isnan(p))

    def disagreement(self, p: Floats) -> Share | None:
        """Return the share of decided games whose probability is on the other side of 0.5 than the verdict."""
        disagreed = np.where(self.decisions == 1, p < 0.5, p > 0.5)
        return self.of(disagreed, ~np.isnan(p) & (self.decisions != NONE))

    def _accepted_by_first_stance(self, first: Codes) -> tuple[Share | None, Share | None]:
        """Return P(accept) if the first seat argues to accept, and if it argues to reject; undecided counts as half.

        Both labels have the same weight. The difference of the two values is the position bias. A leaning to accept
        raises both values alike, so the difference does not include it.
        """
        accepted = np.where(self.decisions == NONE, 0.5, (self.decisions == 1).astype(float))

        def share_if(stance: int) -> Share | None:
            by_label = [self.of(accepted, (first == stance) & (self.labels == label)) for label in (0, 1)]
            shares = [share for share in by_label if share is not None]
            return mean_of(shares) if shares else None

        return share_if(1), share_if(0)


def mean_of(shares: list[Share]) -> Share:
    """Return the mean of several means, each with the same weight."""
    influence = np.sum([share.influence for share in shares], axis=0) / len(shares)
    return Share(
        math.fsum(share.value for share in shares) / len(shares),
        influence,
        sum(share.n for share in shares),
        min(share.clusters for share in shares),
        sum(share.cap for share in shares),
    )


def majority_chance(right: int, wrong: int, none: int, k: int) -> float:
    """Return P(the majority of k plays is right), drawn without replacement from these numbers of plays; a tie is half.

    With more than `EXACT_PLAYS` plays, k is at most `MOST_VOTES`.
    """
    exact = right + wrong + none <= EXACT_PLAYS
    return _enumerated_chance(right, wrong, none, k) if exact else _sequential_chances(right, wrong, none)[k]


@cache
def _enumerated_chance(right: int, wrong: int, none: int, k: int) -> float:
    """Compute the probability by enumerating all choices of plays."""
    total = 0.0
    for i in range(min(right, k) + 1):
        for j in range(max(0, k - i - none), min(wrong, k - i) + 1):
            if i >= j and i > 0:
                ways = math.comb(right, i) * math.comb(wrong, j) * math.comb(none, k - i - j)
                total += ways * (0.5 if i == j else 1.0)
    return total / math.comb(right + wrong + none, k)


@cache
def _sequential_chances(right: int, wrong: int, none: int) -> Sequence[float]:
    """Return the probability for each k up to `MOST_VOTES`, from the number of deciding plays and their majority.

    All terms are positive, so the result is exact up to a few hundred rounding errors on every machine.
    """
    chances = []
    for distribution in _draw_distributions(right, wrong):
        won = np.arange(len(distribution))
        lost = len(distribution) - 1 - won
        weight = np.where(won > lost, 1.0, np.where((won == lost) & (won > 0), 0.5, 0.0))
        chances.append(math.fsum((distribution * weight).tolist()))
    majority = np.array(chances)
    return [
        math.fsum((distribution[: len(majority)] * majority[: len(distribution)]).tolist())
        for distribution in _draw_distributions(right + wrong, none)
    ]


def _draw_distributions(successes: int, failures: int) -> Iterator[Floats]:
    """Yield the probabilities of 0, 1, ... k successes in k draws, for each k up to `MOST_VOTES`, if possible."""
    distribution = np.ones(1)
    yield distribution
    for k in range(min(successes + failures, MOST_VOTES)):
        per_ball = distribution / (successes + failures - k)
        drawn_successes = np.arange(k + 1)
        distribution = np.zeros(k + 2)
        distribution[:-1] = per_ball * np.maximum(failures - (k - drawn_successes), 0)
        distribution[1:] += per_ball * np.maximum(successes - drawn_successes, 0)
        yield distribution
