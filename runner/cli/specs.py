"""The words of a command into points of specs, each loaded and planned once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.api import plan_as_begun
from runner.builtin import is_file
from runner.cli.output import note
from runner.cli.registry import COMMANDS
from runner.errors import Problem, SpecError, UsageError
from runner.results.results import Results
from runner.rollouts.run_plan import sweep_problems
from runner.runs.wiring import ReplayOf
from runner.spec.experiment import SAVED_SPEC
from runner.spec.load import Spec, load_specs
from runner.training.plan import AnyPlan, plan_of


@dataclass(frozen=True, eq=False)
class Point:
    """One point of a spec that a command was given, and the file that it stands in."""

    path: str
    plan: AnyPlan

    @property
    def spec(self) -> Spec:
        return self.plan.spec


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Spec files and overrides: a word with `=`, `+` or `~` is an override, unless there is such a file or run."""
    specs: list[str] = []
    overrides: list[str] = []
    for word in words:
        is_override = ("=" in word or word[:1] in "+~") and not any(map(is_file, (Path(word), Path(word) / SAVED_SPEC)))
        (overrides if is_override else specs).append(word)
    if not specs:
        raise UsageError(f"which spec? {' '.join(words)!r} holds overrides only")
    return specs, overrides


def load_points(words: Sequence[str], *, quiet: bool) -> list[Point]:
    """Every point of every spec; all errors of all of them at once, old names of keys as notes."""
    specs, overrides = split_words(words)
    loaded: list[Point] = []
    problems: list[Problem] = []
    for path in specs:
        try:
            plans = [plan_of(spec) for spec in load_specs(path, overrides, also=list(COMMANDS))]
            problems.extend(sweep_problems(path, plans))
            loaded.extend(Point(path, plan) for plan in plans)
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    note_renamed([point.spec for point in loaded], quiet=quiet)
    return loaded


def as_begun(
    point: Point,
    points: Sequence[Point],
    results: Results,
    *,
    run_id: str | None = None,
    again: bool = False,
    replay: ReplayOf | None = None,
) -> tuple[Point, tuple[str, ...]]:
    """A point of a command's in the chat formats that its run began in, and what there is to say of that."""
    own = point.plan.run_id
    others = {other.plan.run_id for other in points} - {own}
    plan, begun = plan_as_begun(point.plan, results, run_id=run_id, again=again, replay=replay, others=others)
    return replace(point, plan=plan), () if begun is None else (begun,)


def note_renamed(specs: Sequence[Spec], *, quiet: bool) -> None:
    """Tell which keys of specs stand there by their old names."""
    if quiet:
        return
    for line in dict.fromkeys(str(key) for spec in specs for key in spec.renamed):
        note(f"note: {line}")
