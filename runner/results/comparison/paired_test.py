"""Tests of the difference between two systems, and the datapoints whose verdicts flip between them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from runner.base.batches import group_pairs
from runner.base.errors import UnknownValueError
from runner.game.protocols.protocol import Decision
from runner.results.comparison.matching import MatchedPoints
from runner.results.comparison.systems import DatapointScores, ScoredRollout
from runner.results.estimates import estimate
from runner.results.metric_definitions import CONFIDENCE_KINDS, Metric, Source
from runner.results.verdict_columns import bound_shares
from runner.statistics.calibration import Forecasts
from runner.statistics.differences import Difference, Sample, unpaired_difference
from runner.statistics.equivalence import Equivalence
from runner.statistics.gap_recovered import GapRecovered, gap_recovered
from runner.statistics.intervals import CONFIDENCE
from runner.statistics.monitoring.order_measures import MeasureDifference, OrderMeasure
from runner.statistics.paired_groups import Pairs, least_share, missing_variance
from runner.statistics.reporting_rules import near_constant_reason
from runner.statistics.sign_flip import mid_p_mcnemar
from runner.statistics.signal_detection import SensitivityDifference, sensitivity_difference
from runner.statistics.verdicts import Verdicts

_LOGPROB = CONFIDENCE_KINDS[1]


@dataclass(frozen=True)
class Flip:
    """A datapoint where most verdicts of one system are right and most of the other's are wrong."""

    datapoint: str
    """The datapoint's id in the base."""
    group: str
    label: int | str
    right_in: str
    """The name of the system that is right."""
    base_accuracy: float
    other_accuracy: float
    base_run: str
    base_rollout: str
    """A rollout of the base with the majority verdict."""
    other_run: str
    other_rollout: str
    """A rollout of the other system with the majority verdict."""


@dataclass(frozen=True)
class ValueChange:
    """A datapoint whose mean value differs between two systems."""

    datapoint: str
    """The datapoint's id in the base."""
    group: str
    label: int | str
    base_value: float
    other_value: float
    base_run: str
    base_rollout: str
    """The rollout of the base that is furthest from the other system's."""
    other_run: str
    other_rollout: str


@dataclass(frozen=True)
class PairedTest:
    """A test of the difference between two systems, before a correction for several tests."""

    paired: bool
    """Whether it is the sign-flip test of shared datapoints; otherwise it is Welch's test."""
    base_value: float
    other_value: float
    difference: Difference
    """The other system's value minus the base's."""
    p: float | None
    exact: bool
    """Whether all sign flips were enumerated."""
    differing: int | None
    """The number of groups that differ; None if nothing is paired."""
    mid_p_mcnemar: float | None
    """McNemar's mid-p, if each datapoint was played once and is a group of its own."""
    datapoints: int
    difference_at: Callable[[float], Difference]
    """Returns the difference with an interval of another confidence level."""
    equivalence: Equivalence | None = None


def run_paired_test(
    measure: Metric, matched: MatchedPoints, *, stopped: bool, margin: float | None = None
) -> PairedTest | None:
    """Test the difference on the datapoints that both systems have scores for; None if there are none.

    All datapoints have the same weight, however often they were played, except if `Metric.is_balanced`. With a
    `margin`, also test whether the systems are equivalent within it. With `stopped`, a stopping rule may have ended a
    run: then shares are tested by a confidence sequence, and other metrics are not tested.
    """
    rows = [
        _Row(group, base.label, base.scores, other.scores)
        for group, (base, other) in zip(matched.groups, matched.pairs, strict=True)
        if base.scores and other.scores
    ]
    if not rows:
        return None
    if measure.order_measure is not None:
        base, other = ([pair[system] for pair in matched.pairs] for system in (0, 1))
        return _compare_orders(measure, matched.groups, base, other, stopped=stopped)
    weights = _datapoint_weights(measure, [row.label for row in rows])
    pairs = _paired_groups(measure, rows, weights)
    difference, sign_flip = pairs.compare(measure.bound)
    p = sign_flip.p if difference.groups > 1 else None
    difference_at: Callable[[float], Difference] = partial(pairs.difference, measure.bound)
    if stopped and measure.bound == 1.0 and not measure.is_balanced:
        (difference, p), difference_at = pairs.at_any_time(), lambda level: pairs.at_any_time(level)[0]
    elif stopped:
        difference, p, difference_at = drop_error(difference), None, lambda _: drop_error(difference)
    base_value, other_value = (
        math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / math.fsum(weights)
        for values in ([_mean(row.base) for row in rows], [_mean(row.other) for row in rows])
    )
    mid_p = None if stopped or not measure.is_proportion else _mcnemar_of_single_plays(rows, difference.groups)
    exact = sign_flip.exact and not stopped
    equivalence = None if margin is None or stopped else pairs.equivalence(measure.bound, margin)
    return PairedTest(
        True, base_value, other_value, difference, p, exact, sign_flip.differing, mid_p, len(rows), difference_at,
        equivalence,
    )  # fmt: skip


@dataclass(frozen=True)
class _Row:
    """The scores of a datapoint in both systems."""

    group: str
    label: int | str
    base: Sequence[float]
    other: Sequence[float]

    @property
    def difference(self) -> float:
        return _mean(self.other) - _mean(self.base)


def drop_error(difference: Difference) -> Difference:
    """Return a difference without its error and interval."""
    return Difference(difference.value, None, None, None, None, difference.groups)


def _mcnemar_of_single_plays(rows: Sequence[_Row], groups: int) -> float | None:
    """Return McNemar's mid-p, or None unless each datapoint was played once and is a group of its own."""
    if groups != len(rows) or any(len(row.base) != 1 or len(row.other) != 1 for row in rows):
        return None
    differences = [row.difference for row in rows]
    return mid_p_mcnemar(sum(d < 0 for d in differences), sum(d > 0 for d in differences))


def _paired_groups(measure: Metric, rows: Sequence[_Row], weights: Sequence[float]) -> Pairs:
    groups = group_pairs((row.group, (row, weight)) for row, weight in zip(rows, weights, strict=True))
    fewest = min(min(len(row.base), len(row.other)) for row in rows)
    return Pairs(
        [math.fsum(weight * row.difference for row, weight in members) for members in groups.values()],
        [math.fsum(weight for _, weight in members) for members in groups.values()],
        [math.fsum(w * w * missing_variance(row.base, row.other) for row, w in members) for members in groups.values()],
        [min(least_share(len(row.base), len(row.other)) for row, _ in members) for members in groups.values()],
        (measure.bound or 0.0) * len(groups) / (len(rows) * fewest),
    )


def compare_sensitivity(matched: MatchedPoints) -> SensitivityDifference | None:
    """Test the difference of d' on the shared datapoints; None if a label has no decided game, or for one group."""
    if any(isinstance(point.label, str) for point, _ in matched.pairs):
        return None  # verdicts choose from listed answers
    groups: dict[str, list[list[int]]] = {}  # the counts that `sensitivity_difference` takes, of both systems
    for group, pair in zip(matched.groups, matched.pairs, strict=True):
        counts = groups.setdefault(group, [[0, 0, 0, 0], [0, 0, 0, 0]])
        for counts_of_system, point in zip(counts, pair, strict=True):
            decisions = [rollout.decision for rollout in point.rollouts if rollout.decision != Decision.NONE]
            column = 0 if point.label else 2
            counts_of_system[column] += sum(decisions)
            counts_of_system[column + 1] += len(decisions)
    systems = [[counts[index] for counts in groups.values()] for index in (0, 1)]
    if not all(sum(counts[column] for counts in system) for system in systems for column in (1, 3)):
        return None
    return sensitivity_difference(systems[0], systems[1])


def recovered_gap(measure: Metric, matched: MatchedPoints, ceiling: MatchedPoints) -> GapRecovered | None:
    """Return the share of the gap between a base and a ceiling that another system closes; None without scores.

    `matched` has the datapoints of the base and the other system, `ceiling` those of the base and the ceiling.
    """
    ceiling_points = {id(base): point for base, point in ceiling.pairs}
    rows = [
        (group, base.label, _mean(base.scores), _mean(other.scores), _mean(ceiling_points[id(base)].scores))
        for group, (base, other) in zip(matched.groups, matched.pairs, strict=True)
        if id(base) in ceiling_points and base.scores and other.scores and ceiling_points[id(base)].scores
    ]
    if not rows:
        return None
    sums: dict[str, list[float]] = {}
    sign = -1 if measure.better < 0 else 1
    weights = _datapoint_weights(measure, [label for _, label, *_ in rows])
    for weight, (group, _, low, score, high) in zip(weights, rows, strict=True):
        total = sums.setdefault(group, [0.0, 0.0])
        total[0] += sign * weight * (score - low)
        total[1] += sign * weight * (high - low)
    return gap_recovered([gain for gain, _ in sums.values()], [gap for _, gap in sums.values()])


def has_uneven_repeats(matched: MatchedPoints) -> bool:
    """Return whether a datapoint has more scores in one system than in the other."""
    return any(len(base.scores) != len(other.scores) for base, other in matched.pairs if base.scores and other.scores)


def run_unpaired_test(measure: Metric, base: Sequence[DatapointScores], other: Sequence[DatapointScores]) -> PairedTest:
    """Return Welch's test of two systems that share no datapoint. Each system must have a score."""
    if measure.order_measure is not None:
        return _compare_orders(measure, None, base, other, stopped=False)
    first, second = sample_by_group(measure, base), sample_by_group(measure, other)
    difference, p = unpaired_difference(first, second)
    return PairedTest(
        False, first.mean, second.mean, difference, p, False, None, None,
        sum(bool(point.scores) for point in (*base, *other)),
        lambda level: unpaired_difference(first, second, level)[0],
    )  # fmt: skip


def _compare_orders(
    measure: Metric,
    groups: Sequence[str] | None,
    base: Sequence[DatapointScores],
    other: Sequence[DatapointScores],
    *,
    stopped: bool,
) -> PairedTest:
    """Compare two systems by a measure of the order of their games.

    With `groups`, both have the same datapoints, in these groups, and only those with scores of both count.

    Raises:
        UnknownValueError: the measure is unknown for one of the systems; the message says why.
    """
    differing, points = None, (*base, *other)
    if groups is not None:
        rows = [row for row in zip(groups, base, other, strict=True) if row[1].scores and row[2].scores]
        groups, base, other = ([row[0] for row in rows], [row[1] for row in rows], [row[2] for row in rows])
        differing, points = len({row[0] for row in rows if row[1].scores != row[2].scores}), tuple(base)
    first, second = _order_measure(measure, base, groups), _order_measure(measure, other, groups)
    is_known = measure.rule.missing_reason(min(first.clusters, second.clusters)) is None
    compared = MeasureDifference(first, second, groups is not None, is_known and not stopped)
    return PairedTest(
        groups is not None, first.value, second.value, compared.at(CONFIDENCE), compared.p_value(), False, differing,
        None, sum(bool(point.scores) for point in points), compared.at,
    )  # fmt: skip


def _order_measure(
    measure: Metric, points: Iterable[DatapointScores], groups: Sequence[str] | None = None
) -> OrderMeasure:
    """Return a measure of the order of a system's games. `groups` are those of the points, if they are not their own.

    Raises:
        UnknownValueError: the measure is unknown; the message says why.
    """
    points = list(points)
    codes: dict[str, int] = {}
    rows = [
        (score, point.label, codes.setdefault(group, len(codes)))
        for point, group in zip(points, groups or [point.group for point in points], strict=True)
        for score in point.scores
    ]
    p, labels, clusters = (np.array(column) for column in zip(*rows, strict=True))
    forecasts = Forecasts(p.astype(float), labels, clusters, len(codes))
    assert measure.order_measure is not None
    assert measure.compute is not None
    result: OrderMeasure | None = measure.order_measure(forecasts)
    if result is None:
        quantity = measure.compute(forecasts)
        reason = "it needs games of both labels" if quantity is None else quantity.reason
        raise UnknownValueError(f"{measure.name} is unknown: {reason}")
    return result


@dataclass(frozen=True)
class SystemValue:
    """The value of a measure for a system by itself, with its interval."""

    mean: float
    interval: tuple[float | None, float | None]
    reason: str | None
    """The reason why there is no interval, as in `metrics.json`; None if there is one."""


def system_value(measure: Metric, points: Sequence[DatapointScores]) -> SystemValue:
    """Return the value of a measure for a system. At least one datapoint must have a score.

    Raises:
        UnknownValueError: the measure is unknown for these datapoints; the message says why.
    """
    if measure.is_balanced:
        return _balanced_value(measure, points)
    unknown_error = unknown_error_reason(measure, points)
    if measure.order_measure is not None:
        result = _order_measure(measure, points)
        reason = measure.rule.missing_reason(result.clusters) or unknown_error
        return SystemValue(result.value, result.interval_at(CONFIDENCE) if reason is None else (None, None), reason)
    sample = sample_by_group(measure, points)
    reason = measure.rule.missing_reason(len(sample.means)) or unknown_error
    has_two_values = measure.two_values is not None and len({s for point in points for s in point.scores}) == 2
    if reason is None and not measure.is_proportion and not has_two_values:
        reason = near_constant_reason(len(sample.means) - max(Counter(sample.means).values()))
    return SystemValue(sample.mean, sample.interval if reason is None else (None, None), reason)


def unknown_error_reason(measure: Metric, points: Sequence[DatapointScores]) -> str | None:
    """Return why the error of a metric is unknown: few groups of a label, or log-probabilities that are only bounds."""
    if measure.is_balanced:
        groups = [{point.group for point in points if point.label == label} for label in (0, 1)]
        return measure.rule.missing_reason(min(map(len, groups)))
    if measure.source is not Source.FORECASTS or measure.kind != _LOGPROB:
        return None
    bounds = [rollout.bound for point in points for rollout in point.rollouts if rollout.score is not None]
    p = np.array([math.nan if bound is None else bound for bound in bounds])
    is_only_bound = ~np.isnan(p)
    return measure.rule.bounds_reason(*bound_shares(np.nan_to_num(p), is_only_bound.astype(int)))


def _balanced_value(measure: Metric, points: Sequence[DatapointScores]) -> SystemValue:
    """Return the value of a metric of both labels, computed as in `metrics.json`.

    Raises:
        UnknownValueError: all datapoints have the same label.
    """
    _datapoint_weights(measure, [point.label for point in points])
    groups = {name: number for number, name in enumerate(dict.fromkeys(point.group for point in points))}
    rows = [
        (point.label, rollout.decision, number, groups[point.group])
        for number, point in enumerate(points)
        for rollout in point.rollouts
    ]
    labels, decisions, numbers, clusters = (np.array(column) for column in zip(*rows, strict=True))
    assert measure.compute is not None
    verdicts = Verdicts(labels, decisions, numbers, clusters, len(groups), len(groups) < len(points))
    result = estimate(measure, measure.compute(verdicts))
    assert result.value is not None
    return SystemValue(result.value, (result.ci_low, result.ci_high), result.reason)


def sample_by_group(measure: Metric, points: Sequence[DatapointScores]) -> Sample:
    """Return the group means of a system. At least one datapoint must have a score."""
    points = [point for point in points if point.scores]
    groups: dict[str, list[tuple[float, float]]] = {}
    for weight, point in zip(_datapoint_weights(measure, [point.label for point in points]), points, strict=True):
        groups.setdefault(point.group, []).append((weight, _mean(point.scores)))
    sizes = [math.fsum(weight for weight, _ in terms) for terms in groups.values()]
    means = [
        math.fsum(weight * mean for weight, mean in terms) / size
        for terms, size in zip(groups.values(), sizes, strict=True)
    ]
    return Sample(means, sizes, sum(len(point.scores) for point in points), measure.is_proportion)


def _datapoint_weights(measure: Metric, labels: Sequence[int | str]) -> list[float]:
    """Return the weight of each datapoint, given its label: equal, or so that both labels have the same total weight.

    Raises:
        UnknownValueError: the weights depend on the label, and all datapoints have the same label.
    """
    if not measure.is_balanced:
        return [1.0] * len(labels)
    counts = [sum(value == label for value in labels) for label in (0, 1)]
    if not all(counts):
        raise UnknownValueError(
            f"{measure.name} needs datapoints of both labels; {counts[0]} have label 0, {counts[1]} label 1"
        )
    return [len(labels) / (2 * counts[int(label)]) for label in labels]


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


def find_flips(matched: MatchedPoints, base: str, other: str) -> list[Flip]:
    """Return the datapoints where most verdicts of one system are right and most of the other's are wrong."""
    flips = []
    for group, (base_point, other_point) in zip(matched.groups, matched.pairs, strict=True):
        shares = [_mean([float(rollout.correct) for rollout in point.rollouts]) for point in (base_point, other_point)]
        if (shares[0] - 0.5) * (shares[1] - 0.5) < 0:
            base_game = _typical_rollout(base_point, right=shares[0] > 0.5)
            other_game = _typical_rollout(other_point, right=shares[1] > 0.5)
            right = base if shares[0] > shares[1] else other
            flips.append(
                Flip(
                    base_point.id, group, base_point.label, right, shares[0], shares[1],
                    base_game.run_id, base_game.rollout_id, other_game.run_id, other_game.rollout_id,
                )
            )  # fmt: skip
    return flips


def find_value_changes(matched: MatchedPoints) -> list[ValueChange]:
    """Return the datapoints whose mean values differ, those with the largest differences first."""
    changes = []
    for group, points in zip(matched.groups, matched.pairs, strict=True):
        if not all(point.scores for point in points) or (
            (base := _mean(points[0].scores)) == (other := _mean(points[1].scores))
        ):
            continue
        games = [_extreme_rollout(points[0], highest=base > other), _extreme_rollout(points[1], highest=other > base)]
        changes.append(
            ValueChange(
                points[0].id, group, points[0].label, base, other,
                *(text for game in games for text in (game.run_id, game.rollout_id)),
            )
        )  # fmt: skip
    return sorted(changes, key=lambda change: (-abs(change.other_value - change.base_value), change.datapoint))


def _extreme_rollout(point: DatapointScores, *, highest: bool) -> ScoredRollout:
    scored = [(rollout.score, rollout) for rollout in point.rollouts if rollout.score is not None]
    return (max if highest else min)(scored, key=lambda pair: pair[0])[1]


def _typical_rollout(point: DatapointScores, *, right: bool) -> ScoredRollout:
    return next(rollout for rollout in point.rollouts if rollout.correct == right)
