"""Collects the problems in the games of a run and, for a training run, of its parts (the runs of its games)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from runner.base.text import counted
from runner.results.folder import RunFolder
from runner.runs.finished.problems import GameProblem, load_problems


class PartProblem(NamedTuple):
    """A problem, and the run that has the affected games."""

    run_id: str
    problem: GameProblem


def collect_problems(folder: RunFolder, parts: Iterable[RunFolder]) -> list[PartProblem]:
    """Return the problems in a run, and one problem of each kind in its parts, from the first part that has it.

    Raises:
        RunError: a file with problems is damaged.
    """
    problems = [PartProblem(folder.run_id, problem) for problem in load_problems(folder)]
    by_kind: dict[str, list[PartProblem]] = {}
    for part in parts:
        for problem in load_problems(part):
            by_kind.setdefault(problem.kind, []).append(PartProblem(part.run_id, problem))
    for (run_id, problem), *more_parts in by_kind.values():
        more = f" (and in {counted(len(more_parts), 'more part')})" if more_parts else ""
        problems.append(PartProblem(run_id, replace(problem, message=f"{run_id}: {problem.message}{more}")))
    return problems
