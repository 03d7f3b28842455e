"""The problems in a run or in the parts of a training run, each kind once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from runner.base.text import counted
from runner.results.folder import RunFolder
from runner.runs.finished.problems import GameProblem, load_problems


class PartProblems(NamedTuple):
    """A problem and the run whose games had it."""

    run_id: str
    trouble: GameProblem


def collect_problems(folder: RunFolder, parts: Iterable[RunFolder]) -> list[PartProblems]:
    """Return the problems in a run, and each kind of problem in its parts once, with the first such part.

    Raises:
        RunError: a file is damaged.
    """
    problems = [PartProblems(folder.run_id, trouble) for trouble in load_problems(folder)]
    by_kind: dict[str, list[PartProblems]] = {}
    for part in parts:
        for trouble in load_problems(part):
            by_kind.setdefault(trouble.kind, []).append(PartProblems(part.run_id, trouble))
    for (run_id, trouble), *more_parts in by_kind.values():
        more = f" (also in {counted(len(more_parts), 'part')} more)" if more_parts else ""
        problems.append(PartProblems(run_id, replace(trouble, message=f"{run_id}: {trouble.message}{more}")))
    return problems
