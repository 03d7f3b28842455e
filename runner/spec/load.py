"""A spec file and overrides into a `Spec` for each point of its sweep, or every problem at once."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any, cast

from runner import builtin
from runner.documents.check import check
from runner.documents.layered import Layered
from runner.documents.layers import load_layers
from runner.documents.overrides import Override
from runner.errors import Place, Problem, SpecError
from runner.spec.assemble import Readers, Spec, assemble
from runner.spec.experiment import MAX_SWEEP_POINTS, RENAMED_KEYS, SAVED_SPEC, experiment_schema
from runner.text import did_you_mean_file

__all__ = ["Spec", "load_spec", "load_specs"]


def load_spec(path: str | Path, overrides: Sequence[str] = ()) -> Spec:
    """Load a spec without a sweep.

    Raises:
        SpecError: with everything that is wrong, in all files; also where the spec sweeps (see `load_specs`).
    """
    return _only(path, load_specs(path, overrides))


def load_saved(path: str | Path) -> Spec:
    """Load the spec that was saved with a run, to read its records: it may hold what is no longer played.

    Raises:
        SpecError: with everything that is wrong, in all files.
    """
    return _only(path, _load(Path(path), path, (), saved=True))


def _only(path: str | Path, specs: Sequence[Spec]) -> Spec:
    """The one point that there is.

    Raises:
        SpecError: there are several.
    """
    if len(specs) > 1:
        raise SpecError(
            [Problem(Place(str(path)), "sweep", f"the spec sweeps over {len(specs)} points; use load_specs")]
        )
    return specs[0]


def load_specs(path: str | Path, overrides: Sequence[str] = (), *, also: Sequence[str] = ()) -> list[Spec]:
    """Load every point of a spec's sweep, in order: the first key varies slowest.

    Of a run's folder, the spec that was saved in it. `also` are other words that a misspelt file may have been meant
    for, such as commands.

    Raises:
        SpecError: with everything that is wrong, in all files and all points.
    """
    saved = Path(path) / SAVED_SPEC
    if builtin.is_file(saved):  # the folder of a run
        path = saved
    return _load(_found(path, also), path, overrides, saved=False)


def _load(found: Path, path: str | Path, overrides: Sequence[str], *, saved: bool) -> list[Spec]:
    given = [Override(text) for text in overrides]
    layered = _layers(found, path, given)
    readers = Readers(saved=saved)
    _check_size(layered)
    points = list(_points(layered))
    overridden = frozenset(text.partition("=")[0].lstrip("+~") for text in overrides)
    if not points:
        return [replace(assemble(layered, readers), path=found.absolute(), overridden=overridden)]
    problems = [problem for problem in check(layered, experiment_schema()) if problem.key.startswith("sweep")]
    specs = []
    for point in points:
        try:
            swept = _layers(found, path, [*given, Override("sweep={}"), *point])
            values = {override.text.partition("=")[0]: (override.value or (None,))[0] for override in point}
            specs.append(replace(assemble(swept, readers), point=values, path=found.absolute(), overridden=overridden))
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
    if found is not None and builtin.is_file(found):
        return found
    beside = Path(path).parent
    there = [
        p.name
        for folder in (beside, builtin.root() / "specs")
        if builtin.is_folder(folder)
        for p in folder.glob("*.yaml")
    ]
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


def _swept(layered: Layered) -> dict[str, list[Any]]:
    """The keys that are swept over, each with its values; none where the sweep is broken."""
    sweep = layered.data.get("sweep")
    sound = isinstance(sweep, dict) and all(isinstance(values, list) and values for values in sweep.values())
    return cast("dict[str, list[Any]]", sweep) if sound else {}


def _check_size(layered: Layered) -> None:
    """See that a sweep has not more points than it may, before any of them is made.

    Raises:
        SpecError: it has.
    """
    size, most = math.prod(map(len, _swept(layered).values())), layered.data.get("max_sweep_points", MAX_SWEEP_POINTS)
    if isinstance(most, int) and size > most:
        message = f"{size:,} combinations are more than max_sweep_points ({most:,}); sweep over fewer, or set it higher"
        raise SpecError([Problem(layered.place(("sweep",)), "sweep", message)])


def _points(layered: Layered) -> Iterator[list[Override]]:
    columns = [
        [Override(f"{key}=...", layered.place(("sweep", key, index)), (value,)) for index, value in enumerate(values)]
        for key, values in _swept(layered).items()
    ]
    if columns:
        yield from map(list, product(*columns))
