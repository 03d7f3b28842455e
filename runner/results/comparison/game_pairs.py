"""Two runs matched as they are compared: of each datapoint in both, the games of one beside the other's."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from runner.results.comparison.matching import matched
from runner.results.comparison.systems import ScoredRollout, System, SystemReader
from runner.results.metric_table import METRICS, RANKING_METRIC


@dataclass(frozen=True)
class GamePair:
    """A game of one run and a game of the other on one datapoint; None where one was played less often."""

    datapoint: str
    """Its id in the base."""
    group: str
    label: int
    base: ScoredRollout | None
    other: ScoredRollout | None


def game_pairs(base: System, other: System, reading: SystemReader) -> Iterator[GamePair]:
    """The games of two systems on the datapoints that both have, in the order of their repeats.

    Games that were lost in transport are left out.

    Raises:
        UsageError: a run has no game that was answered.
        RunError: a file of a run is missing or damaged.
    """
    points = [reading.points(one, METRICS[RANKING_METRIC]) for one in (base, other)]
    found = matched(points[0], points[1], base.columns & other.columns, is_all=base.columns == other.columns)
    for group, (mine, theirs) in zip(found.groups, found.pairs, strict=True):
        for one, two in zip_longest(mine.rollouts, theirs.rollouts):
            yield GamePair(mine.id, group, mine.label, one, two)
