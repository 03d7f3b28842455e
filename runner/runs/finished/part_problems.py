"""What went wrong in a run, or in the parts of a training run, told once for each kind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import NamedTuple

from runner.base.text import counted
from runner.results.folder import RunFolder
from runner.runs.finished.problems import Trouble, troubles_of


class Found(NamedTuple):
    """A trouble, and the run whose games had it."""

    run_id: str
    trouble: Trouble


def found_in(folder: RunFolder, parts: Iterable[RunFolder]) -> list[Found]:
    """What went wrong in a run; of the parts of a training run each kind once, with its first part.

    Raises:
        RunError: a file of them is damaged.
    """
    found = [Found(folder.run_id, trouble) for trouble in troubles_of(folder)]
    of_kind: dict[str, list[Found]] = {}
    for part in parts:
        for trouble in troubles_of(part):
            of_kind.setdefault(trouble.kind, []).append(Found(part.run_id, trouble))
    for (run_id, trouble), *others in of_kind.values():
        more = f" (so in {counted(len(others), 'part')} more)" if others else ""
        found.append(Found(run_id, replace(trouble, message=f"{run_id}: {trouble.message}{more}")))
    return found
