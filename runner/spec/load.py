"""A spec file and overrides into a `Spec` for each point of its sweep, or every problem at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from runner import builtin
from runner.datasets.typed import CSV, JSON, PARQUET
from runner.documents.check import check
from runner.documents.layered import Layered
from runner.documents.layers import load_layers
from runner.documents.overrides import Override
from runner.documents.renames import SWEEP
from runner.errors import Place, Problem, SpecError
from runner.prompts.templates import SUFFIX as TEMPLATE
from runner.spec.assemble import Readers, Spec, assemble
from runner.spec.experiment import RENAMED_KEYS, SAVED_SPEC, experiment_schema, removable_spec_keys
from runner.spec.sweep import Sweep
from runner.text import comma_join, did_you_mean_file

__all__ = ["Spec", "load_spec", "load_specs"]

_SHOWN = 5
_PROTOCOL_KEYS = {"cycle", "channels", "parameters", "fixed"}
"""Keys that a protocol file has, and no spec."""

_PROTOCOL_ALSO = {"name", "description", "agents"}
"""Keys that both have."""


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
    sweep = Sweep(layered)
    sweep.check_size()
    overridden = frozenset(text.partition("=")[0].lstrip("+~") for text in overrides)
    problems = []
    if layered.data.get(SWEEP):
        problems = [problem for problem in check(layered, experiment_schema()) if problem.key.startswith(SWEEP)]
        problems.extend(sweep.problems())
    specs = []
    for point in sweep.points() if sweep.size else [None]:
        try:
            swept = layered if point is None else _layers(found, path, [*given, Override(f"{SWEEP}={{}}"), *point])
            values = {override.text.partition("=")[0]: (override.value or (None,))[0] for override in point or ()}
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
    if found is not None and builtin.is_file(found) and _other_kind(found, found) is None:
        return found
    taken_for = _other_kind(Path(path), found)
    if taken_for is not None:
        raise SpecError([Problem(Place(str(path)), "", taken_for, taken_for)])
    beside = Path(path).parent
    there = [
        p.name
        for folder in (beside, builtin.root() / "specs")
        if builtin.is_folder(folder)
        for p in folder.glob("*.yaml")
    ]
    hint = did_you_mean_file(Path(path).name, [*there, *also])
    raise SpecError([Problem(Place(str(path)), "", f"no such spec file, here or among the built-in ones{hint}")])


def _other_kind(path: Path, found: Path | None) -> str | None:
    """What a name or a file is that is no spec, and how a spec names it."""
    suffix = path.suffix.lower()
    if suffix in (*JSON, *CSV, *PARQUET) and suffix != ".json":
        return f"a dataset, not a spec; name it in a spec: dataset: {{path: {path}}}"
    if suffix == TEMPLATE:
        return f"a prompt template, not a spec; name its folder in a spec: prompts: {path.parent}"
    if found is None or not builtin.is_folder(found):
        return None
    if any(found.glob(f"*{TEMPLATE}")):
        return f"a folder of prompt templates, not a spec; name it in a spec: prompts: {path}"
    specs = sorted(file.name for file in found.glob("*.yaml"))
    there = f"give a file of it: {comma_join(specs[:_SHOWN])}" if specs else "give a .yaml file, or the folder of a run"
    return f"a folder, not a spec; {there}"


def _layers(found: Path, path: str | Path, overrides: Sequence[Override]) -> Layered:
    """The spec's file with all it extends and all overrides.

    Raises:
        SpecError: with everything that is wrong before the keys are looked at.
    """
    keys = experiment_schema()["properties"]
    removable = removable_spec_keys()
    layered = load_layers(found, str(path), overrides, builtin.find, RENAMED_KEYS, keys=keys, removable=removable)
    if _PROTOCOL_KEYS & layered.data.keys() and not layered.data.keys() & keys.keys() - _PROTOCOL_ALSO:
        message = f"a protocol file, not a spec; name it in a spec: protocol: {{use: {path}}}"
        raise SpecError([Problem(Place(str(path)), "", message, "a protocol file, not a spec")])
    if layered.problems:
        raise SpecError(layered.problems)
    return layered
