"""Load the specs on a command line, and plan their runs, for commands such as `check`, `plan` and `run`.

A point is one run of a spec: a spec with a sweep has several points, any other spec has one.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import SpecError, UsageError
from runner.base.package_data import is_file
from runner.base.problems import Problem
from runner.cli.terminal.output import note, warn, wrap_for_stderr
from runner.registry.components.lookup import make_finder_for
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.run_plan import sweep_problems
from runner.runs.finished.selection import OWN_RUN, RunSelection
from runner.runs.session.original_settings import plans_with_original_settings
from runner.spec.loader import Spec, load_specs
from runner.spec.model_sources import FindRun
from runner.spec.run_names import SAVED_SPEC
from runner.spec.warnings.catalog import warnings_of
from runner.training.plan import AnyPlan, plan_of

if TYPE_CHECKING:
    from runner.curation.generation.recipe import Recipe


@dataclass(frozen=True, eq=False)
class SpecPoint:
    """A point of a spec, with its plan and the spec's path as the user wrote it."""

    path: str
    plan: AnyPlan
    notes: tuple[str, ...] = ()
    """Messages to print before anything is played."""

    @property
    def spec(self) -> Spec:
        return self.plan.spec


def split_arguments(
    arguments: Sequence[str], *, kind: str = "spec", hint: str = "put a spec file before them"
) -> tuple[list[str], list[str]]:
    """Split arguments into names of spec files or runs, and overrides. Error messages contain `kind` and `hint`.

    An argument with `=`, `+` or `~` is an override, unless a spec file or run of that name exists.
    """
    _reject_spaces_around_equals(arguments)
    names: list[str] = []
    overrides: list[str] = []
    for arg in arguments:
        is_spec_or_run = is_file(Path(arg)) or is_file(Path(arg) / SAVED_SPEC)
        is_override = ("=" in arg or arg[:1] in "+~") and not is_spec_or_run
        (overrides if is_override else names).append(arg)
    if not all(arguments):
        raise UsageError(f"the name of a {kind} is empty; give a spec file or a run folder")
    if not names:
        raise UsageError(f"no {kind} given: {' '.join(arguments)!r} are only overrides; {hint}")
    return names, overrides


def _reject_spaces_around_equals(arguments: Sequence[str]) -> None:
    """Check that no override was split by spaces around its `=`.

    Raises:
        UsageError: an override was split; the message shows how to write it.
    """
    for index, argument in enumerate(arguments):
        following = next(iter(arguments[index + 1 :]), "")
        if index and argument.startswith("="):
            key, value = arguments[index - 1], argument[1:] or following
        elif argument.endswith("=") and following and "=" not in following and not is_file(Path(following)):
            key, value = argument[:-1], following
        else:
            continue
        correct_form = shlex.quote(f"{key}={value or 'VALUE'}")
        raise UsageError(f"spaces around the = of an override; write {correct_form}, in quotes if the value has spaces")


def load_points(arguments: Sequence[str], find_run: FindRun, *, quiet: bool) -> list[SpecPoint]:
    """Load every point of every spec, and report all errors of all specs at once.

    `find_run` finds the runs that specs name. Notes about old names of keys are printed unless `quiet`.
    """
    specs, overrides = split_arguments(arguments)
    loaded: list[SpecPoint] = []
    problems: list[Problem] = []
    for path in specs:
        try:
            points = load_specs(path, overrides, find_run, make_finder_for(path))
            plans = [plan_of(spec) for spec in points]
            problems.extend(sweep_problems(path, plans))
            loaded.extend(SpecPoint(path, plan) for plan in plans)
        except SpecError as error:
            _raise_if_rows_missing(path, error)
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    note_renamed([point.spec for point in loaded], quiet=quiet)
    return loaded


def load_recipe_of(arguments: Sequence[str]) -> tuple[str, Recipe]:
    """Return the recipe among arguments, with its path, after applying the overrides.

    Raises:
        UsageError: the arguments have no recipe, or several.
        SpecError: the recipe has errors.
    """
    from runner.curation.generation.recipe import load_recipe

    names, overrides = split_arguments(arguments, kind="recipe", hint="put a recipe before them")
    if len(names) > 1:
        raise UsageError(f"one recipe at a time: {names[1]} is a second one; repeat the command for it")
    return names[0], load_recipe(Path(names[0]), overrides)


def _raise_if_rows_missing(path: str, error: SpecError) -> None:
    """Check whether the reason for `error` is that a downloaded run was published without the rows of its dataset.

    Raises:
        UsageError: the rows are missing; the message says how to get them.
    """
    if not any(problem.key == "dataset.path" for problem in error.problems):
        return
    from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
    from runner.registry.fetched_release import is_fetched, open_fetched

    if is_fetched(Path(path)):
        release = open_fetched(Path(path))
        if lacks_rows(release):
            raise UsageError(f"{path}: {describe_missing_rows(release)}") from error


def keep_chat_formats(
    points: Sequence[SpecPoint], results: Results, selection: RunSelection = OWN_RUN
) -> list[SpecPoint]:
    """Return the points with the chat formats that their runs started with. A note reports a format that differs."""
    plans, notes = plans_with_original_settings([point.plan for point in points], results, selection)
    return [
        replace(point, plan=plan, notes=tuple(point_notes))
        for point, plan, point_notes in zip(points, plans, notes, strict=True)
    ]


def note_renamed(specs: Sequence[Spec], *, quiet: bool) -> None:
    """Print a note for each spec key that is written with its old name."""
    if quiet:
        return
    for line in dict.fromkeys(str(key) for spec in specs for key in spec.renamed):
        note(f"note: {line}")


def show_warnings(points: Sequence[SpecPoint], find_warnings: Callable[[Spec], Iterable[str]] = warnings_of) -> None:
    """Print the warnings on all points on stderr, each once."""
    for line in dict.fromkeys(line for point in points for line in find_warnings(point.spec)):
        warn(wrap_for_stderr(f"warning: {line}"))
