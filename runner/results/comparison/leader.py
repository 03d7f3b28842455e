"""The leader of several systems: the best one on the datapoints that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runner.base.errors import UsageError
from runner.base.text import comma_join, counted
from runner.results.comparison.matching import MatchedPoints
from runner.results.comparison.paired_test import system_value
from runner.results.comparison.systems import DatapointScores, System
from runner.results.metric_definitions import Metric

MIN_GROUPS = 2
"""The minimum number of groups that all systems must share, since the error of a single group is unknown."""


def find_leader(
    points: Mapping[System, Sequence[DatapointScores]],
    measure: Metric,
    match: Callable[[System, System], MatchedPoints],
) -> System:
    """Return the best system on the datapoints that all share; the first one in a tie.

    Raises:
        UsageError: the systems share too few groups of datapoints to choose a leader.
    """
    first, *rest = points
    shared = {id(point): [point] for point in points[first] if point.scores}  # a list of one point for each system
    for system in rest:
        matched_points = {id(point): matched for point, matched in match(first, system).pairs if matched.scores}
        shared = {key: [*row, matched_points[key]] for key, row in shared.items() if key in matched_points}
    groups = {row[0].group for row in shared.values()}
    if len(groups) < MIN_GROUPS:
        counts = comma_join(f"{system.name} {len(scores)}" for system, scores in points.items())
        raise UsageError(
            f"no leader: all these share {counted(len(groups), 'group')} of datapoints (each has: {counts}). Leave one "
            "out, compare two at a time, or choose a baseline: --baseline RUN"
        )
    means = [system_value(measure, points_of_system).mean for points_of_system in zip(*shared.values(), strict=True)]
    best = max(range(len(means)), key=lambda i: (means[i] * (measure.better or 1), -i))
    return list(points)[best]
