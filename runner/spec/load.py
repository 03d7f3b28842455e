"""A spec file and overrides into a `Spec` for each point of its sweep, or every problem at once."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from runner import builtin
from runner.documents.check import check
from runner.documents.layered import Layered
from runner.documents.layers import load_layers
from runner.documents.overrides import Override
from runner.errors import Place, Problem, SpecError
from runner.spec.assemble import Readers, Spec, assemble
from runner.spec.experiment import RENAMED_KEYS, experiment_schema
from runner.text import did_you_mean_file

__all__ = ["Spec", "load_spec", "load_specs"]


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """Load a spec without a sweep.

    Raises:
        SpecError: with everything that is wrong, in all files; also where the spec sweeps (see `load_specs`).
    """
    specs = load_specs(path, overrides)
    if len(specs) > 1:
        raise SpecError(
            [Problem(Place(str(path)), "sweep", f"the spec sweeps over {len(specs)} points; use load_specs")]
        )
    return specs[0]


def load_specs(path: str | Path, overrides: Sequence[str] = (), *, also: Sequence[str] = ()) -> list[Spec]:
    """Load every point of a spec's sweep, in order: the first key varies slowest.

    `also` are other words that a misspelt file may have been meant for, such as commands.

    Raises:
        SpecError: with everything that is wrong, in all files and all points.
    """
    found = _found(path, also)
    given = [Override(text) for text in overrides]
    layered = _layers(found, path, given)
    readers = Readers()
    points = list(_points(layered))
    if not points:
        return [assemble(layered, readers)]
    problems = [problem for problem in check(layered, experiment_schema()) if problem.key.startswith("sweep")]
    specs = []
    for point in points:
        try:
            swept = _layers(found, path, [*given, Override("sweep={}"), *point])
            values = {override.text.partition("=")[0]: (override.value or (None,))[0] for override in point}
            specs.append(replace(assemble(swept, readers), point=values))
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return specs


def _found(path: str | Path, also: Sequence[str]) -> Path:
    """The file of a spec, given here or built in.

    Raises:
        SpecError: there is none; with the nearest name.
    """
    found = builtin.find(str(path), Path())
    if found is not None and found.is_file():
        return found
    beside = Path(path).parent
    there = [p.name for folder in (beside, builtin.root() / "specs") if folder.is_dir() for p in folder.glob("*.yaml")]
    hint = did_you_mean_file(Path(path).name, [*there, *also])
    raise SpecError([Problem(Place(str(path)), "", f"no such spec file, here or among the built-in ones{hint}")])


def _layers(found: Path, path: str | Path, overrides: Sequence[Override]) -> Layered:
    """The spec's file with all it extends and all overrides.

    Raises:
        SpecError: with everything that is wrong before the keys are looked at.
    """
    keys = experiment_schema()["properties"]
    layered = load_layers(found, str(path), overrides, builtin.find, RENAMED_KEYS, keys=keys)
    if layered.problems:
        raise SpecError(layered.problems)
    return layered


def _points(layered: Layered) -> Iterator[list[Override]]:
    sweep = layered.data.get("sweep")
    if not isinstance(sweep, dict) or not all(isinstance(values, list) and values for values in sweep.values()):
        return
    columns = [
        [Override(f"{key}=...", layered.place(("sweep", key, index)), (value,)) for index, value in enumerate(values)]
        for key, values in sweep.items()
    ]
    if columns:
        yield from map(list, product(*columns))
