"""The leader of several systems: who is best on the datapoints that all of them have."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from runner.base.errors import UsageError
from runner.base.text import comma_join, counted
from runner.results.comparison.matching import Matched
from runner.results.comparison.paired_test import sample_of
from runner.results.comparison.systems import DatapointScores, System
from runner.results.metric_table import Metric

FEWEST = 2
"""Groups that all have: one alone leaves every error open."""


def leader_of(
    points: Mapping[System, Sequence[DatapointScores]], measure: Metric, match: Callable[[System, System], Matched]
) -> System:
    """Who is best over the datapoints that all share; the first of those that are.

    Raises:
        UsageError: all share so few that nobody leads.
    """
    first, *others = points
    shared = {id(point): [point] for point in points[first] if point.scores}
    for other in others:
        theirs = {id(mine): its for mine, its in match(first, other).pairs if its.scores}
        shared = {key: [*row, theirs[key]] for key, row in shared.items() if key in theirs}
    groups = {row[0].group for row in shared.values()}
    if len(groups) < FEWEST:
        has = comma_join(f"{system.name} {len(of)}" for system, of in points.items())
        raise UsageError(
            f"no leader: all these share {counted(len(groups), 'group')} of datapoints (each has: {has}). Leave one "
            "out, compare two at a time, or name what they are compared with: --baseline RUN"
        )
    means = []
    for place in range(len(points)):
        own = sample_of(measure, [row[place] for row in shared.values()])
        assert own is not None  # points without a score are left out
        means.append(own.mean)
    best = max(range(len(means)), key=lambda i: (means[i] * (measure.better or 1), -i))
    return list(points)[best]
