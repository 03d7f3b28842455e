"""Pairs of games of two runs about the same datapoints, which are matched as in `compare`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from runner.results.comparison.matching import match_systems
from runner.results.comparison.systems import ScoredRollout, System, SystemReader
from runner.results.metric_definitions import METRICS, RANKING_METRIC


@dataclass(frozen=True)
class GamePair:
    """A game of each of two runs about one datapoint; None if a run has fewer games about it."""

    datapoint: str
    """The datapoint's id in the base."""
    group: str
    label: int | str
    base: ScoredRollout | None
    other: ScoredRollout | None


def game_pairs(base: System, other: System, reader: SystemReader) -> Iterator[GamePair]:
    """Yield the pairs of games of two systems on the datapoints that both have, in the order of their repeats.

    Games that were lost in transport are left out.

    Raises:
        UsageError: a run has no answered game.
        RunError: a file of a run is missing or damaged.
    """
    matched = match_systems(base, other, METRICS[RANKING_METRIC], reader)
    for group, (base_point, other_point) in zip(matched.groups, matched.pairs, strict=True):
        for base_game, other_game in zip_longest(base_point.rollouts, other_point.rollouts):
            yield GamePair(base_point.id, group, base_point.label, base_game, other_game)
