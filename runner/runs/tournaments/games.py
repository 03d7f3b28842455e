"""The games of a tournament so far: their winners, read from the tables of the pairings' runs.

A game is won by the player whose side the judge chooses. A game without a verdict, and a game about a datapoint without
a label, has no winner: it is counted, but no rating uses it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np

from runner.base.storage.parquet import read_tables
from runner.game.protocols.protocol import Decision
from runner.results.folder import RunFolder
from runner.runs.tournaments.plan import LEGS, TournamentPlan
from runner.statistics.pairings import Pairing
from runner.statistics.ratings import RatedGames, RatingModel

_SQL = "SELECT datapoint_id, y, decision, stances_exchanged FROM rollouts ORDER BY ALL"


class GameCounts(NamedTuple):
    """The number of games of a pairing: all, those with a winner, and how many of these each side and player won."""

    games: int = 0
    undecided: int = 0
    """The number of games without a verdict, which were undecided or lost in transport."""
    unlabeled: int = 0
    """The number of games with a verdict about a datapoint without a label."""
    first_won: int = 0
    right_won: int = 0

    @property
    def rated(self) -> int:
        """The number of games with a winner."""
        return self.games - self.undecided - self.unlabeled

    def plus(self, other: GameCounts) -> GameCounts:
        return GameCounts(*map(sum, zip(self, other, strict=True)))


@dataclass(frozen=True)
class _LegGames:
    """The games of one leg: the datapoint, whether the first seat argues right, and whether the right side won."""

    datapoints: tuple[str, ...]
    first_seat_is_right: tuple[bool, ...]
    right_won: tuple[bool, ...]
    undecided: int
    unlabeled: int


@dataclass
class TournamentGames:
    """The games of the finished legs of a tournament."""

    plan: TournamentPlan
    _legs: dict[tuple[Pairing, str], _LegGames] = field(default_factory=dict)

    @cached_property
    def _cluster_of(self) -> dict[str, int]:
        """The number of each datapoint's group."""
        points = self.plan.spec.dataset.datapoints
        numbers = {group: number for number, group in enumerate(dict.fromkeys(point.group for point in points))}
        return {point.id: numbers[point.group] for point in points}

    def read(self, pairing: Pairing, leg: str, folder: RunFolder) -> None:
        """Read the games of a leg from its table, replacing those that were read before.

        Raises:
            RunError: the table is missing, damaged or changed.
        """
        rows = list(read_tables(_SQL, {"rollouts": folder.intact_table("rollouts")}, {}))
        decided = [row for row in rows if row[2] is not None and row[2] != Decision.NONE]
        rated = [row for row in decided if row[1] is not None]
        first_stance = self.plan.spec.protocol.default_stance(self.plan.seats[0])
        self._legs[pairing, leg] = _LegGames(
            tuple(row[0] for row in rated),
            tuple(row[1] == (1 - first_stance if row[3] else first_stance) for row in rated),
            tuple(row[2] == row[1] for row in rated),
            len(rows) - len(decided),
            len(decided) - len(rated),
        )

    def counts(self, pairing: Pairing) -> GameCounts:
        """Return the numbers of games of a pairing."""
        total = GameCounts()
        for leg in LEGS:
            games = self._legs.get((pairing, leg))
            if games is None:
                continue
            first_won = sum(
                (is_right == won) == (leg == LEGS[0])
                for is_right, won in zip(games.first_seat_is_right, games.right_won, strict=True)
            )
            count = len(games.right_won) + games.undecided + games.unlabeled
            total = total.plus(GameCounts(count, games.undecided, games.unlabeled, first_won, sum(games.right_won)))
        return total

    def model(self) -> RatingModel:
        """Return the ratings from all games with a winner."""
        right, wrong, judge, is_first, won, clusters = np.array(list(self._rows()), dtype=int).reshape(-1, 6).T
        return RatingModel(
            RatedGames(
                len(self.plan.players), len(self.plan.judges), right, wrong, judge,
                is_first.astype(bool), won.astype(bool), clusters,
            )
        )  # fmt: skip

    def _rows(self) -> Iterator[tuple[int, int, int, bool, bool, int]]:
        """Yield the right and the wrong player, the judge, whether right is first and won, and the cluster."""
        for (pairing, leg), games in sorted(self._legs.items(), key=lambda entry: entry[0]):
            seated = pairing[:2] if leg == LEGS[0] else (pairing.second, pairing.first)
            for point, is_first, won in zip(games.datapoints, games.first_seat_is_right, games.right_won, strict=True):
                right, wrong = seated if is_first else seated[::-1]
                yield right, wrong, pairing.judge, is_first, won, self._cluster_of[point]
