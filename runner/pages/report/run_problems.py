"""What went wrong in a run, with games to look at: links that we make of ids, never of what a model said."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

from runner.runs.finished.part_problems import PartProblems
from runner.runs.finished.problems import GameProblem

_ROLLOUT = re.compile(r"[0-9a-f]{16}")


def game_link(run_id: str, rollout_id: str) -> str:
    """The address of a game in a page that has it."""
    return f"#/run/{quote(run_id, safe='')}/game/{quote(rollout_id, safe='')}"


def games_link(run_id: str, only: str) -> str:
    """The address of the list of a run's games, those of one kind."""
    return f"#/run/{quote(run_id, safe='')}/games?only={quote(only, safe=',')}"


def of_run(run_id: str, troubles: Iterable[GameProblem]) -> list[dict[str, Any]]:
    """What went wrong in one run."""
    return [_row(run_id, trouble) for trouble in troubles]


def of_parts(found: Iterable[PartProblems]) -> list[dict[str, Any]]:
    """What went wrong in the parts of a training run."""
    return [_row(run_id, trouble) for run_id, trouble in found]


def _row(run_id: str, trouble: GameProblem) -> dict[str, Any]:
    link = None
    if _ROLLOUT.fullmatch(trouble.show):
        link = {"href": game_link(run_id, trouble.show), "text": f"game {trouble.show}"}
    elif trouble.show == "--undecided":
        link = {"href": games_link(run_id, "undecided"), "text": "all undecided games"}
    return {"message": trouble.message, "example": trouble.example, "advice": trouble.advice, "link": link}


def examples(run_id: str, named: Mapping[str, Sequence[tuple[str, str]]]) -> list[dict[str, Any]]:
    """Games that were not right, the first few of each kind."""
    return [
        {
            "kind": kind.replace("_", " "),
            "games": [{"href": game_link(run_id, rollout), "text": datapoint} for rollout, datapoint in games],
        }
        for kind, games in named.items()
    ]
