"""The words of a command into points of specs, each loaded and planned once."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.base.errors import Problem, SpecError, UsageError
from runner.base.package_data import is_file
from runner.cli.commands import COMMANDS
from runner.cli.terminal.output import note, warn, wrapped
from runner.registry.bundles.missing_rows import describe_missing_rows, lacks_rows
from runner.registry.components.lookup import finder_of
from runner.registry.fetched_release import is_fetched, open_fetched
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.run_plan import sweep_problems
from runner.runs.finished.selection import OWN_RUN, WhichRun
from runner.runs.session.chat_format_lock import with_original_formats
from runner.spec.experiment import SAVED_SPEC
from runner.spec.loader import Spec, load_all
from runner.spec.model_sources import FindRun
from runner.spec.warnings.catalog import warnings_of
from runner.training.plan import AnyPlan, plan_of


@dataclass(frozen=True, eq=False)
class SpecPoint:
    """One point of a spec that a command was given, and the file that it stands in."""

    path: str
    plan: AnyPlan
    notes: tuple[str, ...] = ()
    """What there is to say of it before anything is played."""

    @property
    def spec(self) -> Spec:
        return self.plan.spec


def split_words(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Spec files and overrides: a word with `=`, `+` or `~` is an override, unless there is such a file or run."""
    _refuse_blanks(words)
    specs: list[str] = []
    overrides: list[str] = []
    for word in words:
        is_override = ("=" in word or word[:1] in "+~") and not any(map(is_file, (Path(word), Path(word) / SAVED_SPEC)))
        (overrides if is_override else specs).append(word)
    if not all(words):
        raise UsageError("the name of a spec is empty; give a spec file or a run folder")
    if not specs:
        raise UsageError(f"no spec is given: {' '.join(words)!r} are only overrides; put a spec file before them")
    return specs, overrides


def _refuse_blanks(words: Sequence[str]) -> None:
    """See that no override was cut by blanks around its `=`.

    Raises:
        UsageError: one was; with how to write it.
    """
    for index, word in enumerate(words):
        following = next(iter(words[index + 1 :]), "")
        if index and word.startswith("="):
            key, value = words[index - 1], word[1:] or following
        elif word.endswith("=") and following and "=" not in following and not is_file(Path(following)):
            key, value = word[:-1], following
        else:
            continue
        written = shlex.quote(f"{key}={value or 'VALUE'}")
        raise UsageError(f"spaces around the = of an override; write {written}, in quotes if the value has spaces")


def load_points(words: Sequence[str], find_run: FindRun, *, quiet: bool) -> list[SpecPoint]:
    """Every point of every spec; all errors of all of them at once, old names of keys as notes.

    `find_run` looks up the runs that specs name.
    """
    specs, overrides = split_words(words)
    loaded: list[SpecPoint] = []
    problems: list[Problem] = []
    for path in specs:
        try:
            points = load_all(path, overrides, find_run, finder_of(path), also=list(COMMANDS))
            plans = [plan_of(spec) for spec in points]
            problems.extend(sweep_problems(path, plans))
            loaded.extend(SpecPoint(path, plan) for plan in plans)
        except SpecError as error:
            _check_rows(path, error)
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    note_renamed([point.spec for point in loaded], quiet=quiet)
    return loaded


def _check_rows(path: str, error: SpecError) -> None:
    """Of a got run that was published without the rows of its dataset, say how they come to it.

    Raises:
        UsageError: they are what is missing.
    """
    if any(problem.key == "dataset.path" for problem in error.problems) and is_fetched(Path(path)):
        got = open_fetched(Path(path))
        if lacks_rows(got):
            raise UsageError(f"{path}: {describe_missing_rows(got)}") from error


def points_as_begun(points: Sequence[SpecPoint], results: Results, which: WhichRun = OWN_RUN) -> list[SpecPoint]:
    """The points of a command in the chat formats that their runs began in, with what there is to say of that."""
    own = {point.plan.run_id for point in points}
    found = []
    for point in points:
        plan, begun = with_original_formats(point.plan, results, which, other_run_ids=own - {point.plan.run_id})
        found.append(replace(point, plan=plan, notes=() if begun is None else (begun,)))
    return found


def note_renamed(specs: Sequence[Spec], *, quiet: bool) -> None:
    """Tell which keys of specs stand there by their old names."""
    if quiet:
        return
    for line in dict.fromkeys(str(key) for spec in specs for key in spec.renamed):
        note(f"note: {line}")


def show_warnings(points: Sequence[SpecPoint], find_warnings: Callable[[Spec], Iterable[str]] = warnings_of) -> None:
    """Print each warning once, on stderr."""
    for line in dict.fromkeys(line for point in points for line in find_warnings(point.spec)):
        warn(wrapped(f"warning: {line}"))
