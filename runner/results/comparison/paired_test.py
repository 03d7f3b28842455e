"""Two systems into their difference: tested, with its interval, and the datapoints on which the verdicts flip."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from runner.base.errors import UsageError
from runner.results.comparison.matching import Matched
from runner.results.comparison.systems import DatapointScores, ScoredRollout
from runner.results.metric_table import Metric
from runner.statistics.differences import Difference, Sample, unpaired_difference
from runner.statistics.paired_groups import Pairs, least_share, spare_variance
from runner.statistics.sign_flip import mid_p_mcnemar


@dataclass(frozen=True)
class Flip:
    """A datapoint on which most verdicts of one system are right, and most of the other wrong."""

    datapoint: str
    """Its id in the base."""
    group: str
    label: int
    right_in: str
    """The system that is right."""
    base_accuracy: float
    other_accuracy: float
    base_run: str
    base_rollout: str
    """A rollout of the base that went as most did."""
    other_run: str
    other_rollout: str


@dataclass(frozen=True)
class PairedTest:
    """The difference of two systems, the other less the base, before any correction."""

    paired: bool
    base_value: float
    other_value: float
    difference: Difference
    p: float | None
    exact: bool
    """Whether p counts every flip of signs; an unpaired one is Welch's."""
    differing: int | None
    """Groups that differ; None where nothing is paired."""
    mid_p_mcnemar: float | None
    datapoints: int


def tested(measure: Metric, matched: Matched, seed: int, *, stopped: bool) -> PairedTest | None:
    """The paired test over the datapoints that both have a score for; None where there is none.

    Each datapoint weighs the same, however often it was played; see `Metric.is_balanced`. Where a run may have
    `stopped` once it was decided, shares are tested by a confidence sequence, and nothing else is.
    """
    rows = [
        _Row(group, base.label, base.scores, other.scores)
        for group, (base, other) in zip(matched.groups, matched.pairs, strict=True)
        if base.scores and other.scores
    ]
    if not rows:
        return None
    weights = _weights(measure, [row.label for row in rows])
    pairs = _pairs(measure, rows, weights)
    found, flipped = pairs.difference(measure.bound), pairs.test(seed)
    p = flipped.p if found.groups > 1 else None
    if stopped:
        found, p = _stopped(measure, pairs, found)
    total = math.fsum(weights)
    base_value, other_value = (
        math.fsum(weight * value for weight, value in zip(weights, values, strict=True)) / total
        for values in ([_mean(row.base) for row in rows], [_mean(row.other) for row in rows])
    )
    once = (
        not stopped
        and measure.is_proportion
        and found.groups == len(rows)
        and all(len(row.base) == len(row.other) == 1 for row in rows)
    )
    signs = [row.difference for row in rows]
    mid_p = mid_p_mcnemar(sum(d < 0 for d in signs), sum(d > 0 for d in signs)) if once else None
    exact = flipped.exact and not stopped
    return PairedTest(True, base_value, other_value, found, p, exact, flipped.differing, mid_p, len(rows))


@dataclass(frozen=True)
class _Row:
    """The scores of a datapoint in both systems."""

    group: str
    label: int
    base: Sequence[float]
    other: Sequence[float]

    @property
    def difference(self) -> float:
        return _mean(self.other) - _mean(self.base)


def _stopped(measure: Metric, pairs: Pairs, found: Difference) -> tuple[Difference, float | None]:
    if measure.bound == 1.0 and not measure.is_balanced:
        return pairs.at_any_time()
    return without_error(found), None


def without_error(found: Difference) -> Difference:
    """A difference of which nothing more is known."""
    return Difference(found.value, None, None, None, None, found.groups)


def _pairs(measure: Metric, rows: Sequence[_Row], weights: Sequence[float]) -> Pairs:
    groups: dict[str, list[tuple[_Row, float]]] = {}
    for row, weight in zip(rows, weights, strict=True):
        groups.setdefault(row.group, []).append((row, weight))
    fewest = min(min(len(row.base), len(row.other)) for row in rows)
    return Pairs(
        [math.fsum(weight * row.difference for row, weight in members) for members in groups.values()],
        [math.fsum(weight for _, weight in members) for members in groups.values()],
        [math.fsum(w * w * spare_variance(row.base, row.other) for row, w in members) for members in groups.values()],
        [min(least_share(len(row.base), len(row.other)) for row, _ in members) for members in groups.values()],
        (measure.bound or 0.0) * len(groups) / (len(rows) * fewest),
    )


def is_uneven(matched: Matched) -> bool:
    """Whether a datapoint was played more often by one system than by the other."""
    return any(len(base.scores) != len(other.scores) for base, other in matched.pairs if base.scores and other.scores)


def tested_unpaired(
    measure: Metric, base: Sequence[DatapointScores], other: Sequence[DatapointScores]
) -> PairedTest | None:
    """Welch's test of systems that share no datapoint; None where one of them has no score."""
    scored = [[point for point in points if point.scores] for points in (base, other)]
    if not all(scored):
        return None
    one, two = (_sample(measure, points) for points in scored)
    difference, p = unpaired_difference(one, two)
    return PairedTest(False, one.mean, two.mean, difference, p, False, None, None, len(scored[0]) + len(scored[1]))


def sample_of(measure: Metric, points: Sequence[DatapointScores]) -> Sample | None:
    """A system's own mean by group; None where it has no score."""
    scored = [point for point in points if point.scores]
    return _sample(measure, scored) if scored else None


def _sample(measure: Metric, points: Sequence[DatapointScores]) -> Sample:
    groups: dict[str, list[tuple[float, float]]] = {}
    for weight, point in zip(_weights(measure, [one.label for one in points]), points, strict=True):
        groups.setdefault(point.group, []).append((weight, _mean(point.scores)))
    sizes = [math.fsum(weight for weight, _ in terms) for terms in groups.values()]
    means = [
        math.fsum(weight * mean for weight, mean in terms) / size
        for terms, size in zip(groups.values(), sizes, strict=True)
    ]
    return Sample(means, sizes, sum(len(point.scores) for point in points), measure.is_proportion)


def _weights(measure: Metric, labels: Sequence[int]) -> list[float]:
    """How much each datapoint weighs, by its label."""
    if not measure.is_balanced:
        return [1.0] * len(labels)
    counts = [sum(one == label for one in labels) for label in (0, 1)]
    if not all(counts):
        raise UsageError(
            f"{measure.name} needs datapoints of both labels; {counts[0]} have label 0, {counts[1]} label 1"
        )
    return [len(labels) / (2 * counts[label]) for label in labels]


def _mean(scores: Sequence[float]) -> float:
    return math.fsum(scores) / len(scores)


def flips_of(matched: Matched, base: str, other: str) -> list[Flip]:
    """Where most verdicts of one system are right, and most of the other wrong."""
    found = []
    for group, (mine, theirs) in zip(matched.groups, matched.pairs, strict=True):
        shares = [_mean([float(one.correct) for one in point.rollouts]) for point in (mine, theirs)]
        if (shares[0] - 0.5) * (shares[1] - 0.5) < 0:
            one, two = (_typical(p, right=s > 0.5) for p, s in zip((mine, theirs), shares, strict=True))
            right = base if shares[0] > shares[1] else other
            found.append(
                Flip(
                    mine.id, group, mine.label, right, shares[0], shares[1],
                    one.run_id, one.rollout_id, two.run_id, two.rollout_id,
                )
            )  # fmt: skip
    return found


def _typical(point: DatapointScores, *, right: bool) -> ScoredRollout:
    return next(one for one in point.rollouts if one.correct == right)
