"""Shares of verdicts: by label, by datapoint, by group, and from blocks in which one thing is exchanged.

Games are columns of one length. A decision is 0 (reject), 1 (accept) or 2 (none); a label and a stance are 0 or 1; -1
stands where a game has no stance or no seats to exchange.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt

from runner.statistics.clustered_means import (
    Codes,
    Floats,
    Quantity,
    Share,
    counts_of,
    difference,
    difference_error,
    difference_interval,
    share,
)
from runner.statistics.reporting_rules import NOTHING
from runner.statistics.signal_detection import Signal

Mask = npt.NDArray[np.bool_]
NONE, UNSET = 2, -1
LEAST_PLAYS = 5
"""Plays of every datapoint that the accuracy of the worst one needs."""
ONE_STANCE = "seat and stance are one here: add stances: both"
MOST_VOTES = 99
"""The largest panel that vote@k tells of: datapoints may be played thousands of times, and such a panel is not held."""

EXACT_PLAYS = 100
"""Of up to so many plays, the chance of a majority is counted in whole numbers."""

ENOUGH_PLAYED = 0.9
"""Of datapoints, that have the plays that vote@k takes: of a few a rollout may be lost."""


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Decided and undecided games. `points` and `clusters` are numbers from 0; a cluster has one datapoint or more."""

    labels: Codes
    decisions: Codes
    points: Codes
    clusters: Codes
    total: int
    """How many clusters there are."""
    grouped: bool
    """Whether a cluster has several datapoints, which may balance each other."""
    stances: Codes | None = None
    """What all provers argue for, in blocks that play each datapoint with both."""
    swapped: Codes | None = None
    """Whether two seats have exchanged their models, in blocks that play each datapoint both ways: 0 or 1."""
    exchanged: Codes | None = None
    """Whether opposed provers have exchanged their stances, in blocks that play each datapoint both ways: 0 or 1."""

    @cached_property
    def right(self) -> Mask:
        right: Mask = self.decisions == self.labels
        return right

    def of(self, values: Mask | Floats, where: Mask | None = None) -> Share | None:
        """The mean of a value of each game, where a condition holds."""
        chosen = np.ones(len(self.labels), bool) if where is None else where
        found = np.asarray(values, float)[chosen]
        return share(found, self.clusters[chosen], self.total, cap=math.inf if self.grouped else len(found))

    def accepted(self, label: int, *, decided: bool = False) -> Share | None:
        """P(accept | label): completeness for 1, soundness error for 0; of all games or of decided ones."""
        where = self.labels == label
        return self.of(self.decisions == 1, where & (self.decisions != NONE) if decided else where)

    def undecided(self, label: int) -> Share | None:
        return self.of(self.decisions == NONE, self.labels == label)

    def correct(self, label: int) -> Share | None:
        """P(right | label); an undecided game is not right."""
        return self.of(self.right, self.labels == label)

    # From both labels

    @property
    def balanced_accuracy(self) -> Quantity | None:
        """(P(right | 1) + P(right | 0)) / 2; None without games of both labels."""
        right, wrong = self.correct(1), self.correct(0)
        if right is None or wrong is None:
            return None
        turned = Share(1 - wrong.value, -wrong.influence, wrong.n, wrong.clusters, wrong.cap)
        low, high = difference_interval(right, turned)
        ends = max(0.0, (1 + low) / 2), min(1.0, (1 + high) / 2)
        value, error = (right.value + wrong.value) / 2, difference_error(right, turned, 0.5)
        return Quantity(value, error, ends, *counts_of(right, wrong))

    @cached_property
    def _signal(self) -> Signal | None:
        hits, false_alarms = self.accepted(1, decided=True), self.accepted(0, decided=True)
        return None if hits is None or false_alarms is None else Signal(hits, false_alarms)

    @property
    def sensitivity(self) -> Quantity | None:
        """D' of decided games; None without decided games of both labels."""
        if (signal := self._signal) is None:
            return None
        counts = counts_of(signal.hits, signal.false_alarms)
        interval = signal.sensitivity_interval
        return Quantity(signal.sensitivity, signal.sensitivity_error, interval, *counts, signal.open_end)

    @property
    def criterion(self) -> Quantity | None:
        """C of decided games; None without decided games of both labels."""
        if (signal := self._signal) is None:
            return None
        counts = counts_of(signal.hits, signal.false_alarms)
        return Quantity(signal.criterion, signal.criterion_error, signal.criterion_interval, *counts, signal.open_end)

    # By datapoint

    @property
    def lowest_accuracy(self) -> float | None:
        """The lowest accuracy of a datapoint; None without games."""
        if not len(self.points):
            return None
        return float((np.bincount(self.points, weights=self.right) / np.bincount(self.points)).min())

    @property
    def worst_datapoint(self) -> Quantity:
        """The lowest accuracy of a datapoint; without a value if so few plays make it a matter of luck."""
        lowest, plays = self.lowest_accuracy, np.bincount(self.points)
        if lowest is None:
            return Quantity(None, None, None, 0, 0, NOTHING)
        if plays.min() < LEAST_PLAYS:
            reason = f"a datapoint was played fewer than {LEAST_PLAYS} times: the lowest mean is luck"
            return Quantity(None, None, None, len(self.points), len(plays), reason)
        return Quantity(lowest, None, None, len(self.points), len(plays))

    @property
    def always_failed(self) -> Quantity | None:
        """The share of datapoints on which no game is right."""
        share_ = self._failed_points
        return None if share_ is None else share_.as_quantity(self.most_plays)

    @cached_property
    def _failed_points(self) -> Share | None:
        points, at = np.unique(self.points, return_inverse=True)
        rights = np.bincount(at, weights=self.right, minlength=len(points))
        return self._by_unit(rights == 0, at)

    @cached_property
    def most_plays(self) -> int:
        """Of a datapoint, in all forms that blocks play it in."""
        return int(np.bincount(self.points).max(initial=0))

    def vote_at(self, k: int) -> Share | None:
        """vote@k: how often the majority of k plays of a datapoint is right; None where none has so many.

        Of each datapoint, the mean over all choices of k of its plays, which is unbiased whatever their number (the
        hypergeometric distribution); those with fewer are left out. The rule is that of a panel's votes: the verdict
        of most that decide, of a tie that of the first of them, which is right of half of all orders; without any
        that decides there is none. Where blocks exchange stances or seats, each form that was played counts.
        """
        at = self._played_alike
        counts = [
            np.bincount(at, weights=column, minlength=len(self._plays)).astype(np.int64)
            for column in (self.right, ~self.right & (self.decisions != NONE), self.decisions == NONE)
        ]
        enough = self._plays >= k
        if not enough.any():
            return None
        kinds, which = np.unique(np.stack(counts)[:, enough], axis=1, return_inverse=True)
        values = np.array([majority_chance(right, wrong, none, k) for right, wrong, none in kinds.T.tolist()])
        clusters = np.zeros(len(self._plays), dtype=np.int64)
        clusters[at] = self.clusters
        found = values[which.reshape(-1)]
        return share(found, clusters[enough], self.total, cap=math.inf if self.grouped else len(found))

    @cached_property
    def votes(self) -> list[tuple[int, Share]]:
        """vote@k for the odd k that nine in ten datapoints were played as often as; nothing where that is 1.

        Of panels of at most `MOST_VOTES`.
        """
        most = min(int(self._plays.max(initial=0)), MOST_VOTES)
        sizes = [k for k in range(1, most + 1, 2) if np.mean(self._plays >= k) >= ENOUGH_PLAYED]
        found = ((k, self.vote_at(k)) for k in sizes if sizes != [1])
        return [(k, vote) for k, vote in found if vote is not None]

    @property
    def majority_accuracy(self) -> Quantity | None:
        """vote@k for the largest k; None if datapoints were not played three times."""
        if not self.votes:
            return None
        k, vote = self.votes[-1]
        return vote.as_quantity(k)

    @cached_property
    def _plays(self) -> Codes:
        plays: Codes = np.bincount(self._played_alike)
        return plays

    @cached_property
    def _played_alike(self) -> Codes:
        """Numbers of what was played several times: datapoints, by stance and seats."""
        codes = self.points * 27
        for times, column in ((9, self.exchanged), (3, self.stances), (1, self.swapped)):
            codes = codes if column is None else codes + times * (column + 1)
        at: Codes = np.unique(codes, return_inverse=True)[1]
        return at

    def _by_unit(self, values: Mask, at: Codes) -> Share | None:
        """The mean of one value a unit; `at`: of each game, its unit."""
        clusters = np.zeros(len(values), dtype=np.int64)
        clusters[at] = self.clusters
        cap = math.inf if self.grouped else len(values)
        return share(values.astype(float), clusters, self.total, cap=cap)

    # By group

    @cached_property
    def pair_score(self) -> Share | None:
        """Over groups with right and wrong versions: how often a right one is accepted and a wrong one rejected.

        Of a group, the share of all pairs of a game of each; groups count alike. None where no group has both.
        """
        counts = [np.bincount(self.clusters[self.labels == label], minlength=self.total) for label in (0, 1)]
        rights = [np.bincount(self.clusters[self.right & (self.labels == y)], minlength=self.total) for y in (0, 1)]
        both = np.flatnonzero((counts[0] > 0) & (counts[1] > 0))
        values = (rights[0][both] / counts[0][both]) * (rights[1][both] / counts[1][both])
        cap = int(np.minimum(counts[0], counts[1])[both].sum())
        return share(values, both, self.total, cap=cap)

    # From blocks

    def played_with_both(self, column: Codes) -> Mask:
        """Games of datapoints that were played with both values of what a block exchanges."""
        size = int(self.points.max(initial=0)) + 1
        seen = [np.bincount(self.points[column == value], minlength=size) > 0 for value in (0, 1)]
        found: Mask = (seen[0] & seen[1])[self.points] & (column != UNSET)
        return found

    def persuaded(self, stance: int) -> Share | None:
        """P(verdict = stance | all provers argue for it), over datapoints that were played with both stances."""
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
        """The games of datapoints that were played with all that their blocks exchange."""
        keep = np.ones(len(self.labels), bool)
        for column in (self.stances, self.swapped, self.exchanged):
            if column is not None:
                keep &= self.played_with_both(column)
        return keep

    def where(self, keep: Mask) -> Verdicts:
        stances, swapped, exchanged = (
            None if column is None else column[keep] for column in (self.stances, self.swapped, self.exchanged)
        )
        return replace(
            self, labels=self.labels[keep], decisions=self.decisions[keep], points=self.points[keep],
            clusters=self.clusters[keep], stances=stances, swapped=swapped, exchanged=exchanged,
        )  # fmt: skip

    @property
    def swap_effect(self) -> Quantity | None:
        """P(accept) as written less P(accept) with the seats swapped; None without swapped seats."""
        if self.swapped is None:
            return None
        written, swapped = (self.of(self.decisions == 1, self.swapped == way) for way in (0, 1))
        return None if written is None or swapped is None else difference(written, swapped)

    def position_bias(self, first: Codes | None) -> Quantity | None:
        """Return P(verdict = stance of the first seat) - P(verdict = stance of the other).

        `first` has the stance of the first prover in each game, or is None if provers do not oppose each other. A seat
        that always argues the same cannot be told from the leaning to accept: it has no position bias.
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
        """Return P(verdict = stance) if the stance is the label, less that if it is not."""
        won = self.decisions == stances
        honest, dishonest = (self.of(won, (stances == self.labels) == is_true) for is_true in (True, False))
        return None if honest is None or dishonest is None else difference(honest, dishonest)

    # Of log-probabilities

    def bounds(self, p: Floats, bound: Codes | None) -> Share | None:
        """Return the share of known probabilities that are only bounds."""
        return None if bound is None else self.of(bound == 1, ~np.isnan(p))

    def disagreement(self, p: Floats) -> Share | None:
        """Return the share of decided games whose probability is on the other side of 0.5 than the verdict."""
        disagreed = np.where(self.decisions == 1, p < 0.5, p > 0.5)
        return self.of(disagreed, ~np.isnan(p) & (self.decisions != NONE))

    def _accepted_by_first_stance(self, first: Codes) -> tuple[Share | None, Share | None]:
        """Return P(accept) if the first seat argues to accept, and if it argues to reject; undecided counts as half.

        Labels count alike. The difference is the position bias over both ways to give the stances: a leaning to accept
        is in both.
        """
        accepted = np.where(self.decisions == NONE, 0.5, (self.decisions == 1).astype(float))

        def where(stance: int) -> Share | None:
            cells = [self.of(accepted, (first == stance) & (self.labels == label)) for label in (0, 1)]
            found = [cell for cell in cells if cell is not None]
            return mean_of(found) if found else None

        return where(1), where(0)


def mean_of(shares: list[Share]) -> Share:
    """The mean of several means, each of which counts alike."""
    influence = np.sum([one.influence for one in shares], axis=0) / len(shares)
    return Share(
        math.fsum(one.value for one in shares) / len(shares),
        influence,
        sum(one.n for one in shares),
        min(one.clusters for one in shares),
        sum(one.cap for one in shares),
    )


def majority_chance(right: int, wrong: int, none: int, k: int) -> float:
    """How often the majority of k plays is right, drawn without replacement from so many of each; a tie is half.

    Of more than `EXACT_PLAYS` plays, k is at most `MOST_VOTES`.
    """
    exact = right + wrong + none <= EXACT_PLAYS
    return _counted(right, wrong, none, k) if exact else _play_by_play(right, wrong, none)[k]


@cache
def _counted(right: int, wrong: int, none: int, k: int) -> float:
    """The chance by all ways to choose the plays."""
    total = 0.0
    for i in range(min(right, k) + 1):
        for j in range(max(0, k - i - none), min(wrong, k - i) + 1):
            if i >= j and i > 0:
                ways = math.comb(right, i) * math.comb(wrong, j) * math.comb(none, k - i - j)
                total += ways * (0.5 if i == j else 1.0)
    return total / math.comb(right + wrong + none, k)


@cache
def _play_by_play(right: int, wrong: int, none: int) -> Sequence[float]:
    """The chance for each k up to `MOST_VOTES`: of how many of the k plays decide, times that of their majority.

    Only products and sums of what is positive, so that it is right but for some hundred roundings, on every machine.
    """
    chances = []
    for drawn in _drawn(right, wrong):
        won = np.arange(len(drawn))
        lost = len(drawn) - 1 - won
        weight = np.where(won > lost, 1.0, np.where((won == lost) & (won > 0), 0.5, 0.0))
        chances.append(math.fsum((drawn * weight).tolist()))
    majority = np.array(chances)
    return [
        math.fsum((drawn[: len(majority)] * majority[: len(drawn)]).tolist()) for drawn in _drawn(right + wrong, none)
    ]


def _drawn(these: int, others: int) -> Iterator[Floats]:
    """The chances to draw 0, 1, ... k of these, for each k up to `MOST_VOTES`; nothing beyond what there is."""
    drawn = np.ones(1)
    yield drawn
    for k in range(min(these + others, MOST_VOTES)):
        each = drawn / (these + others - k)
        taken = np.arange(k + 1)
        drawn = np.zeros(k + 2)
        drawn[:-1] = each * np.maximum(others - (k - taken), 0)
        drawn[1:] += each * np.maximum(these - taken, 0)
        yield drawn
