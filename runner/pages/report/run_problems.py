"""What went wrong in a run, with games to look at: links that we make of ids, never of what a model said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from runner.runs.finished.problems import GameProblem


class Link(NamedTuple):
    """A link within a page."""

    href: str
    text: str


class ProblemView(NamedTuple):
    """A problem, and where to look at its games."""

    problem: GameProblem
    link: Link | None


_ROLLOUT = re.compile(r"[0-9a-f]{16}")


def game_link(run_id: str, rollout_id: str) -> str:
    """The address of a game in a page that has it."""
    return f"#/run/{quote(run_id, safe='')}/game/{quote(rollout_id, safe='')}"


def games_link(run_id: str, only: str) -> str:
    """The address of the list of a run's games, those of one kind."""
    return f"#/run/{quote(run_id, safe='')}/games?only={quote(only, safe=',')}"


def problem_views(problems: Iterable[tuple[str, GameProblem]]) -> list[ProblemView]:
    """Return what went wrong in runs, each problem with the id of its run."""
    return [ProblemView(problem, _link(run_id, problem)) for run_id, problem in problems]


def _link(run_id: str, problem: GameProblem) -> Link | None:
    if _ROLLOUT.fullmatch(problem.show):
        return Link(game_link(run_id, problem.show), f"game {problem.show}")
    is_list = problem.show == "--undecided"
    return Link(games_link(run_id, "undecided"), "all undecided games") if is_list else None


def examples(run_id: str, named: Mapping[str, Sequence[tuple[str, str]]]) -> list[tuple[str, list[Link]]]:
    """Return links to games that were not right, the first few of each kind."""
    return [
        (kind.replace("_", " "), [Link(game_link(run_id, rollout), datapoint) for rollout, datapoint in games])
        for kind, games in named.items()
    ]
