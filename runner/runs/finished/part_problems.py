"""What went wrong in a run, or in the parts of a training run, told once for each kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from runner.base.text import counted
from runner.results.folder import RunFolder
from runner.runs.finished.problems import GameProblem, troubles_of


class PartProblems(NamedTuple):
    """A trouble, and the run whose games had it."""

    run_id: str
    trouble: GameProblem


def found_in(folder: RunFolder, parts: Iterable[RunFolder]) -> list[PartProblems]:
    """What went wrong in a run; of the parts of a training run each kind once, with its first part.

    Raises:
        RunError: a file of them is damaged.
    """
    found = [PartProblems(folder.run_id, trouble) for trouble in troubles_of(folder)]
    of_kind: dict[str, list[PartProblems]] = {}
    for part in parts:
        for trouble in troubles_of(part):
            of_kind.setdefault(trouble.kind, []).append(PartProblems(part.run_id, trouble))
    for (run_id, trouble), *others in of_kind.values():
        more = f" (so in {counted(len(others), 'part')} more)" if others else ""
        found.append(PartProblems(run_id, replace(trouble, message=f"{run_id}: {trouble.message}{more}")))
    return found
