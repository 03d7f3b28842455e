"""A run's games in one pass: the data of its lists, games and trees, and the tables of what they came to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from runner.pages.report.games import GamePage, GamesData, row_of
from runner.pages.report.run_numbers import GameTables, calls_so_far, game_tables
from runner.pages.report.run_problems import Link, examples
from runner.pages.report.run_totals import RunTally
from runner.pages.report.run_trees import TreesView, trees_view
from runner.pages.report.trees import TreesData
from runner.pages.site import Keep
from runner.rollouts.plan import Plan
from runner.runs.finished.problems import GameProblem

FIRST = 100
"""So many games stand in the page for a browser without JavaScript."""


@dataclass(frozen=True)
class GamesSummary:
    """What the games of a run came to, at one moment."""

    games: int
    done: int
    """How many games, or trees, are finished."""
    tables: GameTables | None
    """None if there are no games."""
    examples: Sequence[tuple[str, Sequence[Link]]]
    trees: TreesView | None
    """None if it has no trees."""
    tree_count: int
    metrics: Mapping[str, Any] | None
    """Those so far, where the run has no file of them."""
    troubles: Sequence[GameProblem]
    so_far: tuple[str, ...] | None
    """The number in the headline that says what the games took so far."""


@dataclass(frozen=True)
class Gathered:
    """The games of a run that its page has."""

    about: Mapping[str, Any]
    """How many there are and where they stand: see `GamesData.about`."""
    first: Sequence[Mapping[str, Any]]
    """The rows of the first of them."""
    told: GamesSummary | None = None
    """None where none was read."""
    is_part: bool = False
    """Whether more of them are being read."""
    problem: str | None = None
    """Why none could be read."""


class RunGames:
    """Takes in the games of a run, those of one tree one after another."""

    def __init__(self, plan: Plan, run_id: str, slug: str, keep: Keep, *, measures: bool) -> None:
        """`measures`: count their metrics too, since no file has them."""
        self._run_id = run_id
        self.data = GamesData(slug, keep)
        self.first: list[dict[str, Any]] = []
        self._tally = RunTally(plan, measures)
        self._trees = None if plan.shape is None else TreesData(plan, run_id, slug, keep)

    def add(self, game: GamePage) -> None:
        """Take in one game."""
        row = row_of(game)
        self.data.add(game, row)
        self._tally.add(game.told)
        if self._trees is not None:
            self._trees.add(game.rollout)
        if len(self.first) < FIRST:
            self.first.append(row)

    def gathered(self) -> Gathered:
        """The games so far, all of which are kept by now, and what they came to."""
        trees = {} if self._trees is None else {"trees": self._trees.about()}
        return Gathered({**self.data.about(), **trees}, tuple(self.first), self._told())

    def _told(self) -> GamesSummary:
        tally, trees = self._tally, self._trees
        return GamesSummary(
            games=tally.games,
            done=tally.games if trees is None else trees.count,
            tables=game_tables(tally) if tally.games else None,
            examples=examples(self._run_id, tally.examples),
            trees=None if trees is None or not trees.count else trees_view(self._run_id, trees),
            tree_count=0 if trees is None else trees.count,
            metrics=tally.metrics(),
            troubles=tally.troubles(),
            so_far=calls_so_far(tally),
        )
