"""The problems in a run's games, and the file that stores them in the run's folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from runner.base.storage.atomic_files import atomic_write, read_json
from runner.base.text import counted
from runner.results.folder import RunFolder


@dataclass(frozen=True)
class GameProblem:
    """A kind of problem, which affects `count` out of `of` calls, messages or rollouts. Field names are stored."""

    kind: str
    count: int
    of: int
    message: str
    example: str = ""
    advice: str = ""
    show: str = ""
    """The argument that makes `nip-run show RUN` show an example: a rollout id or an option."""

    def __str__(self) -> str:
        return "; ".join(part for part in (self.message, self.example, self.advice) if part)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def load_problems(folder: RunFolder) -> list[GameProblem]:
    """Read the problems of a finished run. The list is empty for runs of earlier versions, which stored no problems.

    Raises:
        RunError: the file is damaged.
    """
    file = folder.problems_path
    return [GameProblem(**row) for row in read_json(file)["troubles"]] if file.is_file() else []


class PartProblem(NamedTuple):
    """A problem, and the id of the run or part with the affected games."""

    run_id: str
    problem: GameProblem


def collect_problems(folder: RunFolder, parts: Iterable[RunFolder]) -> list[PartProblem]:
    """Return a run's problems, and one problem of each kind in its parts: the problem of the first affected part.

    The parts of a training run are the runs of its games. Other runs have no parts.

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


def store_problems(folder: RunFolder, problems: Sequence[GameProblem]) -> None:
    """Write the problems to a file, or delete this file if there are none.

    The problems are not stored in `metrics.json`, because every version of nip-run must recompute that file without a
    change, but the kinds and texts of problems may change.
    """
    file = folder.problems_path
    if problems:
        data = {"troubles": [problem.to_json() for problem in problems]}
        atomic_write(file, json.dumps(data, indent=2).encode())
    else:
        file.unlink(missing_ok=True)
