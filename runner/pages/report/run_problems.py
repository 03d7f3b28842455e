"""The problems of a run, with links to example games. Links are built from ids, never from a model's text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote

from runner.runs.finished.stored_problems import GameProblem


class Link(NamedTuple):
    """A link within a page."""

    href: str
    text: str


class ProblemView(NamedTuple):
    """A problem, and a link to its games."""

    problem: GameProblem
    link: Link | None


_ROLLOUT = re.compile(r"[0-9a-f]{16}")


def game_link(run_id: str, rollout_id: str) -> str:
    """Return the link to a game on the run's page."""
    return f"#/run/{quote(run_id, safe='')}/game/{quote(rollout_id, safe='')}"


def problem_views(problems: Iterable[tuple[str, GameProblem]]) -> list[ProblemView]:
    """Return problems with links; each problem comes with the id of its run."""
    return [ProblemView(problem, _link(run_id, problem)) for run_id, problem in problems]


def _link(run_id: str, problem: GameProblem) -> Link | None:
    if _ROLLOUT.fullmatch(problem.show):
        return Link(game_link(run_id, problem.show), f"game {problem.show}")
    is_list = problem.show == "--undecided"
    link = f"#/run/{quote(run_id, safe='')}/games?only=undecided"
    return Link(link, "all undecided games") if is_list else None


def examples(run_id: str, games_by_kind: Mapping[str, Sequence[tuple[str, str]]]) -> list[tuple[str, list[Link]]]:
    """Return links to games that were not right, by kind."""
    return [
        (kind.replace("_", " "), [Link(game_link(run_id, rollout), datapoint) for rollout, datapoint in games])
        for kind, games in games_by_kind.items()
    ]
