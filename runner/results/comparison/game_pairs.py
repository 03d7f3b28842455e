"""Pairs of games of two runs about the same datapoints, which are matched as in `compare`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

    Games of the same form are a pair. Games are paired in their order if both systems have no form in common, because
    only one plays blocks, or if a system has several games of one form. Lost games are left out.

    Raises:
        UsageError: a run has no answered game.
        RunError: a file of a run is missing or damaged.
    """
    matched = match_systems(base, other, METRICS[RANKING_METRIC], reader)
    for group, (base_point, other_point) in zip(matched.groups, matched.pairs, strict=True):
        for base_game, other_game in _pairs_of_games(base_point.rollouts, other_point.rollouts):
            yield GamePair(base_point.id, group, base_point.label, base_game, other_game)


def _pairs_of_games(
    base: Sequence[ScoredRollout], other: Sequence[ScoredRollout]
) -> Iterator[tuple[ScoredRollout | None, ScoredRollout | None]]:
    base_games, other_games = ({game.form: game for game in games} for games in (base, other))
    has_several = len(base_games) < len(base) or len(other_games) < len(other)
    if has_several or base_games.keys().isdisjoint(other_games):
        yield from zip_longest(base, other)
        return
    for form in base_games | other_games:
        yield base_games.get(form), other_games.get(form)
