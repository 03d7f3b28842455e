"""Processes a run's games in one pass: the data of lists, games and trees, and the tables of results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.pages.report.games import GamePage, GamesData, row_of
from runner.pages.report.run_numbers import GameTables, calls_so_far, game_tables
from runner.pages.report.run_problems import Link, examples
from runner.pages.report.run_totals import RunTally
from runner.pages.report.trees import TreesData, TreesView, trees_view
from runner.pages.site import StorePiece
from runner.rollouts.plan import Plan
from runner.runs.finished.stored_problems import GameProblem

MAX_PLAIN_GAMES = 100
"""Maximum number of games in the page for browsers without JavaScript."""


@dataclass(frozen=True)
class GamesSummary:
    """The results of a run's games at one moment."""

    games: int
    done: int
    """Number of finished games or, for a run of trees, of finished trees."""
    tables: GameTables | None
    """The tables of the games; None without games."""
    examples: Sequence[tuple[str, Sequence[Link]]]
    trees: TreesView | None
    """The trees; None if the run has none."""
    tree_count: int
    metrics: Mapping[str, Any] | None
    """The metrics so far, if the run has no metrics file yet."""
    problems: Sequence[GameProblem]
    so_far: tuple[str, ...] | None
    """The cost of the games so far, as an entry of the headline."""


@dataclass(frozen=True)
class CollectedGames:
    """The games of a run for its page."""

    about: Mapping[str, Any]
    """The number of games and the places of their data; see `GamesData.about`."""
    first: Sequence[Mapping[str, Any]]
    """The rows of the first games."""
    results: GamesSummary | None = None
    """The results of the games; None if no game was read."""
    is_part: bool = False
    """Whether more games are being read."""
    problem: str | None = None
    """The reason if the games could not be read."""


class RunGames:
    """Collects the games of a run; the branches of a tree must be added consecutively."""

    def __init__(self, plan: Plan, run_id: str, slug: str, store_piece: StorePiece, *, measures: bool) -> None:
        """Start without games. `measures`: also compute the metrics, because no file has them."""
        self._run_id = run_id
        self.data = GamesData(slug, store_piece)
        self.first: list[dict[str, Any]] = []
        self._tally = RunTally(plan, measures)
        self._trees = None if plan.tree_shape is None else TreesData(plan, run_id, slug, store_piece)

    def add(self, game: GamePage) -> None:
        """Add a game."""
        row = row_of(game)
        self.data.add(game, row)
        self._tally.add(game.details)
        if self._trees is not None:
            self._trees.add(game.rollout)
        if len(self.first) < MAX_PLAIN_GAMES:
            self.first.append(row)

    def collect(self) -> CollectedGames:
        """Store the data of the games so far, and return them with their results."""
        trees = {} if self._trees is None else {"trees": self._trees.about()}
        return CollectedGames({**self.data.about(), **trees}, tuple(self.first), self._summary())

    def _summary(self) -> GamesSummary:
        tally, trees = self._tally, self._trees
        return GamesSummary(
            games=tally.games,
            done=tally.games if trees is None else trees.count,
            tables=game_tables(tally) if tally.games else None,
            examples=examples(self._run_id, tally.examples),
            trees=None if trees is None or not trees.count else trees_view(self._run_id, trees),
            tree_count=0 if trees is None else trees.count,
            metrics=tally.metrics(),
            problems=tally.problems(),
            so_far=calls_so_far(tally),
        )
