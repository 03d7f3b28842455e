"""Select the programs of a dataset: as many right as wrong ones of each problem, in splits of whole problems."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from runner.base.hashing import tagged_hash
from runner.curation.generation.recipe import RecipeFile
from runner.curation.generation.screening import Candidate, ScreenedProblem

NO_BUG = "no program with a bug can be used"
NO_REFACTORING = "no refactored program can be used"
ONE_LABEL = "all proposals that can be used are right, or all are wrong"


class _Choice(NamedTuple):
    """A program of a problem, its label, and the candidate that a model wrote; None for a given solution."""

    source: str
    label: int
    candidate: Candidate | None


@dataclass(frozen=True)
class SelectedProgram:
    """One row of the dataset, and the model's program in it; None for a given solution."""

    id: str
    problem_id: str
    question: str
    split: str | None
    source: str
    label: int
    candidate: Candidate | None


@dataclass(frozen=True)
class ProgramSelection:
    """The rows of the dataset in order, and the reason why each other problem has none."""

    programs: tuple[SelectedProgram, ...]
    unused: Mapping[str, str]


def select_programs(screened: Sequence[ScreenedProblem], file: RecipeFile) -> ProgramSelection:
    """Select the rows: in the order of the problems, and within a problem in an order that does not tell labels."""
    chosen: dict[str, list[_Choice]] = {}
    unused: dict[str, str] = {}
    for item in screened:
        choice = _choose_proposals(item) if file.make == "proposals" else _choose_pair(item, refactor=file.refactor)
        if isinstance(choice, str):
            unused[item.verified.problem.id] = choice
        else:
            chosen[item.verified.problem.id] = choice
    groups = {item.verified.problem.id: item.verified.problem.group for item in screened}
    splits = _assign_splits({groups[id_] for id_ in chosen}, file)
    programs: list[SelectedProgram] = []
    for item in screened:
        problem = item.verified.problem
        rows = [
            SelectedProgram(
                f"{problem.id}/{tagged_hash('dataset row', [problem.id, source])[:8]}", problem.id, problem.question,
                splits.get(problem.group), source, label, candidate,
            )
            for source, label, candidate in chosen.get(problem.id, ())
        ]  # fmt: skip
        programs += sorted(rows, key=lambda row: row.id.rpartition("/")[2])
    return ProgramSelection(tuple(programs), unused)


def _choose_pair(item: ScreenedProblem, *, refactor: bool) -> list[_Choice] | str:
    """Return the bug that fails most rarely, and the right program whose edit is most similar in size."""
    bugs = item.usable("bug")
    if not bugs:
        return NO_BUG
    bug = min(bugs, key=lambda c: (c.failing, c.fuzzed_failing, _distance(c), c.number))
    if not refactor:
        return [_Choice(bug.source, 0, bug), _Choice(item.verified.original, 1, None)]
    right = min(item.usable("refactoring"), key=lambda c: (abs(_distance(c) - _distance(bug)), c.number), default=None)
    return NO_REFACTORING if right is None else [_Choice(bug.source, 0, bug), _Choice(right.source, 1, right)]


def _choose_proposals(item: ScreenedProblem) -> list[_Choice] | str:
    """Return as many right as wrong proposals, the same number of each."""
    by_label = {label: [c for c in item.usable("proposal") if c.label == label] for label in (0, 1)}
    count = min(map(len, by_label.values()))
    choices = [_Choice(c.source, label, c) for label, candidates in by_label.items() for c in candidates[:count]]
    return choices or ONE_LABEL


def _distance(candidate: Candidate) -> int:
    return 0 if candidate.edit is None else candidate.edit.distance


def _assign_splits(groups: Collection[str], file: RecipeFile) -> dict[str, str]:
    """Return the split of each group of problems. Hashes with the seed determine the order, the shares the sizes."""
    order = sorted(groups, key=lambda group: tagged_hash("split", [file.seed, group]))
    ends = list(_ends(file.splits, len(order)))
    return {group: next(name for name, end in ends if i < end) for i, group in enumerate(order)} if ends else {}


def _ends(splits: Mapping[str, float], count: int) -> Iterator[tuple[str, int]]:
    """Yield each split with the index after its last group."""
    total = 0.0
    names = list(splits)
    for name in names:
        total += splits[name]
        yield name, count if name == names[-1] else round(total * count)
