"""A spec file and overrides into a `Spec` for each point of its sweep, or every problem at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import Place, Problem, SpecError
from runner.base.text import comma_join, did_you_mean_file
from runner.documents.layer_merge import load_layers
from runner.documents.layered_data import LayeredData
from runner.documents.overrides import Override
from runner.documents.renamed_keys import SWEEP
from runner.documents.schema_check import check
from runner.documents.source_tree import ProjectTree
from runner.game.prompts.templates import SUFFIX as TEMPLATE
from runner.spec.assembly import Readers, Spec, assemble
from runner.spec.components import Components, FindComponent, none_installed, without_what_follows
from runner.spec.datasets.loader import Dataset
from runner.spec.datasets.typed_rows import CSV, JSON, PARQUET
from runner.spec.experiment import RENAMED_KEYS, SAVED_SPEC
from runner.spec.model_sources import FindRun, no_runs, take_models
from runner.spec.origin import path_problems
from runner.spec.rejudged_run import take_debates
from runner.spec.schemas import experiment_schema, removable_spec_keys, resettable_spec_keys
from runner.spec.source_files import SpecSources, as_words
from runner.spec.sweep import Sweep
from runner.spec.training_continuation import take_start

__all__ = ["Spec", "load_spec", "load_specs"]

_SHOWN = 5
_PROTOCOL_KEYS = {"cycle", "channels", "parameters", "fixed"}
"""Keys that a protocol file has, and no spec."""

_NO_SWEEP = Override(f"{SWEEP}={{}}")
"""What makes a spec one of its points, before that point's own overrides."""

_PROTOCOL_ALSO = {"name", "description", "agents"}
"""Keys that both have."""


SpecSource = str | Path | Mapping[str, Any]
"""A spec's file, given here or built in; a run's folder; or what such a file says, as a mapping."""
Overrides = str | Sequence[str] | Mapping[str, Any]
"""Lines as on the command line, `KEY=VALUE`, `+KEY=VALUE` and `~KEY`, or one; or values by dotted key, as they are."""


def load_spec(
    source: SpecSource,
    overrides: Overrides = (),
    find_run: FindRun = no_runs,
    find_component: FindComponent = none_installed,
) -> Spec:
    """Load a spec without a sweep; see `runner.api.load_spec`, which finds runs in a results folder.

    Raises:
        SpecError: with everything that is wrong, in all files, as `problems`; also where the spec sweeps.
    """
    return _only(source, load_specs(source, overrides, find_run, find_component))


def load_saved(path: str | Path, given: Dataset | None = None) -> Spec:
    """Load the spec that was saved with a run, to read its records: it may hold what is no longer played.

    `given` is what is known of its datapoints, where their rows are not there.

    Raises:
        SpecError: with everything that is wrong, in all files.
    """
    return _only(path, _load(Path(path), path, (), saved=True, found_by=(no_runs, none_installed), given=given))


def _only(source: SpecSource, specs: Sequence[Spec]) -> Spec:
    """The one point that there is.

    Raises:
        SpecError: there are several.
    """
    if len(specs) > 1:
        raise SpecError(
            [Problem(Place(_shown(source)), "sweep", f"the spec sweeps over {len(specs)} points; use load_specs")]
        )
    return specs[0]


def load_specs(
    source: SpecSource,
    overrides: Overrides = (),
    find_run: FindRun = no_runs,
    find_component: FindComponent = none_installed,
) -> list[Spec]:
    """Load every point of a spec's sweep, in order; see `runner.api.load_specs`.

    Raises:
        SpecError: with everything that is wrong, in all files and all points.
    """
    return load_all(source, overrides, find_run, find_component)


def load_all(
    source: SpecSource,
    overrides: Overrides = (),
    find_run: FindRun = no_runs,
    find_component: FindComponent = none_installed,
    *,
    also: Sequence[str] = (),
    tree: ProjectTree | None = None,
) -> list[Spec]:
    """`load_specs`; `also` are other words that a misspelt file may have been meant for, such as commands.

    `tree` holds the files that are a mapping's own, by default the current folder's.
    """
    if isinstance(source, Mapping):
        return _load(Path(_WRITTEN), source, overrides, saved=False, found_by=(find_run, find_component), tree=tree)
    saved = Path(source) / SAVED_SPEC
    path = saved if package_data.is_file(saved) else source  # the folder of a run
    return _load(_found(path, also), path, overrides, saved=False, found_by=(find_run, find_component))


def read_written(path: str | Path, find_component: FindComponent = none_installed) -> LayeredData:
    """What a spec's file says with all that it extends, before anything that it names is read: its sweep is not played.

    Raises:
        SpecError: with everything that is wrong before the keys are looked at.
    """
    found = _found(path, ())
    return _layers(found, path, (), Components(find_component, ProjectTree.of(found)))


_WRITTEN = "spec"
"""How messages name a spec that is in no file."""


def _shown(source: SpecSource) -> str:
    return _WRITTEN if isinstance(source, Mapping) else str(source)


def _overrides(given: Overrides) -> list[Override]:
    if isinstance(given, Mapping):
        return [Override(f"{key}=...", Place(f"override {key!r}"), (value,)) for key, value in given.items()]
    lines: list[Any] = [given] if isinstance(given, str) else list(given)
    odd = [line for line in lines if not isinstance(line, str)]
    if odd:
        message = "an override is a text, KEY=VALUE, +KEY=VALUE or ~KEY; or give a mapping of keys to values"
        raise SpecError([Problem(Place(f"override {line!r}"), "", message) for line in odd])
    return [Override(line) for line in lines]


def _load(
    found: Path,
    source: SpecSource,
    overrides: Overrides,
    *,
    saved: bool,
    found_by: tuple[FindRun, FindComponent],
    tree: ProjectTree | None = None,
    given: Dataset | None = None,
) -> list[Spec]:
    find_run, find_component = found_by
    said = _overrides(overrides)
    path = None if isinstance(source, Mapping) else found.absolute()
    tree = tree or ProjectTree.of(found)
    components = Components(find_component, tree)
    layered = _layers(found, source, said, components)
    readers = Readers(saved=saved, given=given)
    sweep = Sweep(layered)
    sweep.check_size()
    overridden = frozenset(override.text.partition("=")[0].lstrip("+~") for override in said)
    problems = list(layered.wrong_nulls)
    if layered.data.get(SWEEP):
        problems.extend(problem for problem in check(layered, experiment_schema()) if problem.key.startswith(SWEEP))
        problems.extend(sweep.problems())
    specs = []
    for point in sweep.points() if sweep.size else [None]:
        try:
            swept, named = layered, components
            if point is not None:
                named = Components(find_component, tree)
                swept = _layers(found, source, [*said, _NO_SWEEP, *point], named)
            values = {override.text.partition("=")[0]: (override.value or (None,))[0] for override in point or ()}
            places = {override.text.partition("=")[0]: override.place for override in point or () if override.place}
            spec = _assembled(swept, readers, named, find_run)
            written = SpecSources(tuple(swept.read), as_words([*said, *([] if point is None else [_NO_SWEEP, *point])]))
            origin = replace(spec.origin, written=written)
            specs.append(
                replace(spec, point=values, point_places=places, path=path, overridden=overridden, origin=origin)
            )
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return specs


def _assembled(layered: LayeredData, readers: Readers, components: Components, find_run: FindRun) -> Spec:
    """One point, with what it names of releases and runs put in.

    Raises:
        SpecError: with everything that is wrong.
    """
    if wrong := list(path_problems(layered, saved=readers.saved)):
        raise SpecError(wrong)
    begun = list(take_start(layered, find_run, components.look_up))  # which may name a release, too
    refused = list(components.take(layered))
    if wrong := [*begun, *take_models(layered, find_run), *take_debates(layered, find_run)]:
        raise SpecError([*refused, *wrong])
    try:
        spec = assemble(layered, readers)
    except SpecError as error:
        raise SpecError([*refused, *without_what_follows(error.problems, refused)]) from error
    if refused:
        raise SpecError(refused)
    return replace(spec, components=components.uses)


def _found(path: str | Path, also: Sequence[str]) -> Path:
    """The file of a spec, given here or built in.

    Raises:
        SpecError: there is none; with the nearest name.
    """
    found = package_data.find_file(str(path), Path())
    if found is not None and package_data.is_file(found) and _other_kind(found, found) is None:
        return found
    taken_for = _other_kind(Path(path), found)
    if taken_for is not None:
        raise SpecError([Problem(Place(str(path)), "", taken_for, taken_for)])
    beside = Path(path).parent
    there = [
        p.name
        for folder in (beside, package_data.root() / "specs")
        if package_data.is_folder(folder)
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
    if found is not None and not package_data.is_folder(found) and not package_data.is_file(found):
        return "not a regular file; give a .yaml file, or the folder of a run"
    if found is None or not package_data.is_folder(found):
        return None
    if any(found.glob(f"*{TEMPLATE}")):
        return f"a folder of prompt templates, not a spec; name it in a spec: prompts: {path}"
    specs = sorted(file.name for file in found.glob("*.yaml"))
    there = f"give a file of it: {comma_join(specs[:_SHOWN])}" if specs else "give a .yaml file, or the folder of a run"
    return f"a folder, not a spec; {there}"


def _layers(found: Path, source: SpecSource, overrides: Sequence[Override], components: Components) -> LayeredData:
    """The spec's file with all it extends and all overrides.

    Raises:
        SpecError: with everything that is wrong before the keys are looked at.
    """
    keys = experiment_schema()["properties"]
    written = source if isinstance(source, Mapping) else None
    layered = load_layers(
        found,
        _shown(source),
        overrides,
        components.find_base,
        RENAMED_KEYS,
        keys=keys,
        removable=removable_spec_keys(),
        resettable=resettable_spec_keys(),
        tree=components.tree,
        written=written,
    )
    if _PROTOCOL_KEYS & layered.data.keys() and not layered.data.keys() & keys.keys() - _PROTOCOL_ALSO:
        shown = _shown(source)
        message = f"a protocol file, not a spec; name it in a spec: protocol: {{use: {shown}}}"
        raise SpecError([Problem(Place(shown), "", message, "a protocol file, not a spec")])
    if layered.problems:
        raise SpecError([*layered.problems, *layered.wrong_nulls])
    return layered
