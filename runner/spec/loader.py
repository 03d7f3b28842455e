"""Load a spec file and overrides into a `Spec` for each point of its sweep, or report every problem at once.

All commands and public functions load specs with it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import SpecError
from runner.base.problems import Place, Problem
from runner.base.text import did_you_mean_file, list_some
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import KeyRules, LayeredData
from runner.documents.overrides import Override
from runner.documents.renamed_keys import SWEEP
from runner.documents.schema_check import check_schema
from runner.documents.source_tree import ProjectTree
from runner.game.prompts.templates import SUFFIX as TEMPLATE
from runner.spec.assembly import LoadedInputs, Spec, assemble, assemble_whole_dataset
from runner.spec.components import Components, FindComponent, drop_consequences, reject_references
from runner.spec.datasets.loader import HUB, Dataset
from runner.spec.datasets.typed_rows import CSV, JSON, PARQUET
from runner.spec.experiment import RENAMED_KEYS
from runner.spec.model_sources import FindRun, reject_run_ids, resolve_model_sources
from runner.spec.origin import SpecSources, as_argument, path_problems
from runner.spec.rejudged_run import resolve_rejudged_run
from runner.spec.run_names import SAVED_SPEC
from runner.spec.schemas import experiment_schema, removable_spec_keys, resettable_spec_keys
from runner.spec.sweep import Sweep
from runner.spec.training_continuation import resolve_training_start

__all__ = ["Spec", "load_spec", "load_specs"]

_PROTOCOL_KEYS = {"cycle", "channels", "parameters", "fixed"}
"""Keys of a protocol file that a spec does not have."""

_SHARED_KEYS = {"name", "description", "agents"}
"""Keys of both protocol files and specs."""

_NO_SWEEP = Override(f"{SWEEP}={{}}")
"""Override that removes the sweep, applied before the overrides of a single point."""

SpecSource = str | Path | Mapping[str, Any]
"""The path of a spec file, the name of a built-in spec, a run's folder, or a spec's content as a mapping."""
Overrides = str | Sequence[str] | Mapping[str, Any]
"""`KEY=VALUE`, `+KEY=VALUE` and `~KEY` as on the command line, or a mapping of dotted keys to values."""


def load_spec(
    source: SpecSource,
    overrides: Overrides = (),
    find_run: FindRun = reject_run_ids,
    find_component: FindComponent = reject_references,
) -> Spec:
    """Load a spec without a sweep. `runner.api.load_spec` also finds runs in a results folder.

    Raises:
        SpecError: the spec has errors, or a sweep; `problems` lists all of them.
    """
    return _single_spec(source, load_specs(source, overrides, find_run, find_component))


def load_saved(path: str | Path, known_dataset: Dataset | None = None, *, checked_sha256: str | None = None) -> Spec:
    """Load the saved spec of a run, to read the run. Settings that new runs no longer accept are allowed.

    `known_dataset` replaces the dataset of a run that was published without its rows. A spec with the hash
    `checked_sha256` is not checked. The caller must check that the files that it names are unchanged, too.

    Raises:
        SpecError: the spec has errors; lists all of them.
    """
    file = Path(path)
    inputs = LoadedInputs(saved=True, known_dataset=known_dataset, checked_sha256=checked_sha256)
    loader = _SpecLoader(file, path, (), inputs, reject_run_ids, reject_references, ProjectTree.of(file))
    return _single_spec(path, loader.load_points())


def _single_spec(source: SpecSource, specs: Sequence[Spec]) -> Spec:
    """Return the only spec in the list.

    Raises:
        SpecError: the list has several specs, the points of a sweep.
    """
    if len(specs) > 1:
        message = f"the spec sweeps over {len(specs)} points; use load_specs"
        raise SpecError([Problem(Place(_display_name(source)), "sweep", message)])
    return specs[0]


def load_specs(
    source: SpecSource,
    overrides: Overrides = (),
    find_run: FindRun = reject_run_ids,
    find_component: FindComponent = reject_references,
    *,
    tree: ProjectTree | None = None,
) -> list[Spec]:
    """Load every point of a spec's sweep, in order. `runner.api.load_specs` also finds runs in a results folder.

    `tree` has the files that a spec in a mapping may read; the default is the current folder.

    Raises:
        SpecError: the spec or a point has errors; lists all of them.
    """
    file = None
    if not isinstance(source, Mapping):
        source = _saved_spec_or_path(source)
        file = _find_spec_file(source)
        tree = ProjectTree.of(file)
    tree = tree or ProjectTree.of(Path(_NAME_WITHOUT_FILE))
    parsed_overrides = _parse_overrides(overrides)
    return _SpecLoader(file, source, parsed_overrides, LoadedInputs(), find_run, find_component, tree).load_points()


def _saved_spec_or_path(path: str | Path) -> str | Path:
    """Return the saved spec in a run's folder, and any other path unchanged."""
    saved = Path(path) / SAVED_SPEC
    return saved if package_data.is_file(saved) else path


def read_spec_data(path: str | Path, find_component: FindComponent) -> LayeredData:
    """Return the merged content of a spec file and the files that it extends, but of no other file that it names.

    Raises:
        SpecError: the files have errors that prevent checking the keys; lists all of them.
    """
    spec_file = _find_spec_file(path)
    return _load_layers(spec_file, str(path), (), Components(find_component, ProjectTree.of(spec_file)))


def load_whole_dataset(source: str, overrides: Sequence[str], find_component: FindComponent) -> Dataset:
    """Load a dataset file, or the dataset of a spec with all its splits and rows (`assembly.assemble_whole_dataset`).

    Raises:
        SpecError: the dataset, the section `dataset` of the spec, or a section that overrides change, has errors; lists
            all of them.
    """
    parsed_overrides = _parse_overrides(overrides)
    is_data = Path(source).suffix.lower() in {*JSON, *CSV, *PARQUET} - {".json"} or source.startswith(HUB)
    content: Path | Mapping[str, Any]
    if is_data:
        content, name = {}, _NAME_WITHOUT_FILE
        parsed_overrides = [Override("dataset.path=...", Place(source), (source,)), *parsed_overrides]
    else:
        content = _find_spec_file(_saved_spec_or_path(source))
        name = str(content)
    components = Components(find_component, ProjectTree.of(Path(name)))
    layered = _load_layers(content, name, parsed_overrides, components)
    problems = [*path_problems(layered, saved=False), *layered.wrong_nulls, *components.resolve(layered)]
    if problems := [problem for problem in problems if problem.key.partition(".")[0] == "dataset"]:
        raise SpecError(problems)
    overridden = {override.key.partition(".")[0] for override in parsed_overrides}
    return assemble_whole_dataset(layered, {"dataset", *overridden})


_NAME_WITHOUT_FILE = "spec"
"""The name of a spec without a file in messages."""


def _display_name(source: SpecSource) -> str:
    return _NAME_WITHOUT_FILE if isinstance(source, Mapping) else str(source)


def _parse_overrides(overrides: Overrides) -> list[Override]:
    if isinstance(overrides, Mapping):
        return [Override(f"{key}=...", Place(f"override {key!r}"), (value,)) for key, value in overrides.items()]
    texts: list[Any] = [overrides] if isinstance(overrides, str) else list(overrides)
    invalid = [text for text in texts if not isinstance(text, str)]
    if invalid:
        message = "an override must be text (KEY=VALUE, +KEY=VALUE or ~KEY), or pass a mapping of keys to values"
        raise SpecError([Problem(Place(f"override {text!r}"), "", message) for text in invalid])
    return [Override(text) for text in texts]


def _sweep_problems(layered: LayeredData, sweep: Sweep) -> list[Problem]:
    """Return the problems of the section `sweep`."""
    if not layered.data.get(SWEEP):
        return []
    violations = check_schema(layered, experiment_schema())
    return [*(problem for problem in violations if problem.key.startswith(SWEEP)), *sweep.problems()]


@dataclass(frozen=True)
class _SpecLoader:
    """Loads the points of one spec. The files are read again for each point of a sweep, with the point's overrides."""

    file: Path | None
    """The spec's file; None if `source` is the spec's content."""
    source: SpecSource
    overrides: Sequence[Override]
    inputs: LoadedInputs
    find_run: FindRun
    find_component: FindComponent
    tree: ProjectTree

    def load_points(self) -> list[Spec]:
        """Return a spec for each point, or the only spec if there is no sweep.

        Raises:
            SpecError: the spec or a point has errors; lists all of them.
        """
        components = Components(self.find_component, self.tree)
        layered = self._read(self.overrides, components)
        sweep = Sweep(layered)
        sweep.check_size()
        problems = [*layered.wrong_nulls, *_sweep_problems(layered, sweep)]
        specs = []
        for point in sweep.points() if sweep.size else [None]:
            try:
                if point is None:
                    specs.append(self._assemble(layered, components, self.overrides))
                else:
                    specs.append(self._load_point(point))
            except SpecError as error:
                problems.extend(error.problems)
        if problems:
            raise SpecError(problems)
        return specs

    def _load_point(self, point: Sequence[Override]) -> Spec:
        """Return the spec of a point, with the values that the sweep sets for it."""
        components = Components(self.find_component, self.tree)
        overrides = [*self.overrides, _NO_SWEEP, *point]
        spec = self._assemble(self._read(overrides, components), components, overrides)
        values = {override.key: (override.value or (None,))[0] for override in point}
        places = {override.key: override.place for override in point if override.place}
        return replace(spec, point=values, point_places=places)

    def _read(self, overrides: Sequence[Override], components: Components) -> LayeredData:
        content = self.source if isinstance(self.source, Mapping) else self.file
        assert content is not None
        return _load_layers(content, _display_name(self.source), overrides, components)

    def _assemble(self, layered: LayeredData, components: Components, overrides: Sequence[Override]) -> Spec:
        """Return the spec that merged data describe, with the files that it was read from."""
        spec = _assemble_point(layered, self.inputs, components, self.find_run)
        sources = SpecSources(tuple(layered.read_files), tuple(map(as_argument, overrides)))
        return replace(
            spec,
            path=None if self.file is None else self.file.absolute(),
            overridden=frozenset(override.key for override in self.overrides),
            origin=replace(spec.origin, sources=sources),
        )


def _assemble_point(layered: LayeredData, inputs: LoadedInputs, components: Components, find_run: FindRun) -> Spec:
    """Assemble one point, including the releases and runs that it names.

    Raises:
        SpecError: the point has errors; lists all of them.
    """
    if problems := list(path_problems(layered, saved=inputs.saved)):
        raise SpecError(problems)
    run_problems = list(resolve_training_start(layered, find_run, components.find_component))
    component_problems = list(components.resolve(layered))
    run_problems += [*resolve_model_sources(layered, find_run), *resolve_rejudged_run(layered, find_run)]
    if run_problems:
        raise SpecError([*component_problems, *run_problems])
    try:
        spec = assemble(layered, inputs)
    except SpecError as error:
        raise SpecError([*component_problems, *drop_consequences(error.problems, component_problems)]) from error
    if component_problems:
        raise SpecError(component_problems)
    return replace(spec, components=components.uses)


def _find_spec_file(path: str | Path) -> Path:
    """Return the path of a spec file, or of the built-in spec with that name.

    Raises:
        SpecError: there is no such file, with the most similar name; or the path names something other than a spec.
    """
    file = package_data.find_file(str(path), Path())
    if file is not None and package_data.is_file(file) and _describe_other_kind(file, file) is None:
        return file
    other_kind = _describe_other_kind(Path(path), file)
    if other_kind is not None:
        raise SpecError([Problem(Place(str(path)), "", other_kind, other_kind)])
    spec_files = [
        spec_file.name
        for folder in (Path(path).parent, package_data.root() / "specs")
        if package_data.is_folder(folder)
        for spec_file in folder.glob("*.yaml")
    ]
    hint = did_you_mean_file(Path(path).name, spec_files) or "; give the path of a .yaml file"
    message = f"no such spec file, neither here nor among the built-in specs{hint}"
    raise SpecError([Problem(Place(str(path)), "", message)])


def _describe_other_kind(path: Path, file: Path | None) -> str | None:
    """Return the kind of a file that is not a spec, and the spec key for such files; None if it may be a spec.

    `file` is the existing file or folder that the path names, if any.
    """
    suffix = path.suffix.lower()
    if suffix in (*JSON, *CSV, *PARQUET) and suffix != ".json":
        return f"a dataset, not a spec; name it in a spec: dataset: {{path: {path}}}"
    if suffix == TEMPLATE:
        return f"a prompt template, not a spec; name its folder in a spec: prompts: {path.parent}"
    if file is not None and not package_data.is_folder(file) and not package_data.is_file(file):
        return "not a regular file; give a .yaml file, or the folder of a run"
    if file is None or not package_data.is_folder(file):
        return None
    if any(file.glob(f"*{TEMPLATE}")):
        return f"a folder of prompt templates, not a spec; name it in a spec: prompts: {path}"
    specs = sorted(spec.name for spec in file.glob("*.yaml"))
    hint = f"give a file of it: {list_some(specs)}" if specs else "give a .yaml file, or the folder of a run"
    return f"a folder, not a spec; {hint}"


def _load_layers(
    source: Path | Mapping[str, Any], name: str, overrides: Sequence[Override], components: Components
) -> LayeredData:
    """Return the merged content of a spec, the files that it extends, and the overrides. Messages contain `name`.

    Raises:
        SpecError: the files have errors that prevent checking the keys; lists all of them.
    """
    keys = experiment_schema()["properties"]
    rules = KeyRules(keys, RENAMED_KEYS, removable_spec_keys(), resettable_spec_keys())
    layered = load_layers(source, name, overrides, components.find_base, rules, tree=components.tree)
    if _PROTOCOL_KEYS & layered.data.keys() and not layered.data.keys() & keys.keys() - _SHARED_KEYS:
        message = f"a protocol file, not a spec; name it in a spec: protocol: {{use: {name}}}"
        raise SpecError([Problem(Place(name), "", message, "a protocol file, not a spec")])
    if layered.problems:
        raise SpecError([*layered.problems, *layered.wrong_nulls])
    return layered
