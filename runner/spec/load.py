"""A spec file and overrides into a `Spec`: everything resolved, checked and read, or every problem at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from runner import builtin
from runner.datasets.load import HUB, Dataset, load_dataset
from runner.datasets.settings import DatasetSettings
from runner.documents.check import check
from runner.documents.fields import from_plain, to_plain
from runner.documents.layers import Layered, Override, load_layers
from runner.errors import Place, PlaceOf, Problem, SpecError
from runner.hashing import file_hash, tagged_hash
from runner.prompts.templates import PromptSet, load_prompts
from runner.protocols.load import load_protocol, unplayable
from runner.protocols.protocol import Protocol
from runner.protocols.table import Parameters
from runner.spec.checks.agents import agent_problems, group_problems
from runner.spec.checks.columns import column_problems
from runner.spec.checks.models import budget_problems, model_problems, replay_folder
from runner.spec.checks.sound import Sound
from runner.spec.checks.training import training_problems
from runner.spec.checks.trees import tree_problems
from runner.spec.experiment import Experiment, experiment_schema
from runner.storage.journal import JOURNAL
from runner.text import did_you_mean_file


@dataclass(frozen=True)
class Spec:
    """One point of a spec: its keys, and the protocol, prompts and datapoints they name."""

    experiment: Experiment
    protocol: Protocol
    prompts: PromptSet
    dataset: Dataset
    replays: Mapping[str, Path]
    """For each model group that replays a run: that run's folder."""
    replayed: Mapping[str, str] = field(default_factory=dict)
    """For each model group that replays a run: the SHA-256 of that run's journal."""
    cache: Path | None = None
    test: Dataset | None = None
    """What a training run measures its models on."""
    point: Mapping[str, Any] = field(default_factory=dict)
    """What the sweep sets here: dotted keys and their values."""


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
    found = builtin.find(str(path), Path())
    if found is None or not found.is_file():
        beside = Path(path).parent
        there = [
            p.name for folder in (beside, builtin.root() / "specs") if folder.is_dir() for p in folder.glob("*.yaml")
        ]
        hint = did_you_mean_file(Path(path).name, [*there, *also])
        raise SpecError([Problem(Place(str(path)), "", f"no such spec file, here or among the built-in ones{hint}")])
    given = [Override(text) for text in overrides]
    layered = load_layers(found, str(path), given, builtin.find)
    if layered.problems:
        raise SpecError(layered.problems)
    readers = _Readers({}, {})
    points = list(_points(layered))
    if not points:
        return [_assemble(layered, readers)]
    problems = [problem for problem in check(layered, experiment_schema()) if problem.key.startswith("sweep")]
    specs = []
    for point in points:
        try:
            swept = load_layers(found, str(path), [*given, Override("sweep={}"), *point], builtin.find)
            if swept.problems:
                raise SpecError(swept.problems)
            values = {override.text.partition("=")[0]: (override.value or (None,))[0] for override in point}
            specs.append(replace(_assemble(swept, readers), point=values))
        except SpecError as error:
            problems.extend(error.problems)
    if problems:
        raise SpecError(problems)
    return specs


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


@dataclass(frozen=True)
class _Readers:
    """Datasets and journals that were read already, so that a sweep reads each once."""

    datasets: dict[str, Dataset | SpecError]
    journals: dict[Path, str]

    def journal_hash(self, run: Path) -> str:
        if run not in self.journals:
            self.journals[run] = file_hash(run / JOURNAL)
        return self.journals[run]

    def dataset(self, settings: DatasetSettings, path: Path | None, seed: int, where: PlaceOf) -> Dataset:
        name = tagged_hash("read", [to_plain(settings), str(path), seed])
        if name not in self.datasets:
            try:
                self.datasets[name] = load_dataset(settings, path, seed, where)
            except SpecError as error:
                self.datasets[name] = error
        found = self.datasets[name]
        if isinstance(found, SpecError):
            raise found
        return found


def _assemble(layered: Layered, readers: _Readers) -> Spec:
    """Check and read all that its own errors allow, so that one mistake does not hide the next."""
    problems = check(layered, experiment_schema())
    sound = Sound(layered.data, frozenset(problem.key for problem in problems))
    dataset = protocol = prompts = None
    try:
        if "path" in sound.section("dataset"):
            dataset = _dataset(layered, readers, sound)
    except SpecError as error:
        problems.extend(error.problems)
    try:
        if "use" in sound.section("protocol"):
            protocol = _protocol(layered, sound.section("protocol"))
            problems.extend(unplayable(protocol, _where(layered)))
    except SpecError as error:
        problems.extend(error.problems)
    if protocol is not None:
        problems.extend(agent_problems(layered, protocol, sound))
    problems.extend(group_problems(layered, sound))
    problems.extend(model_problems(layered, sound))
    problems.extend(budget_problems(layered, sound))
    try:
        name, place = layered.data.get("prompts"), layered.place(("prompts",))
        folder = builtin.find(name, layered.folder(("prompts",))) if isinstance(name, str) else None
        if isinstance(name, str) and (folder is None or not folder.is_dir()):
            problems.append(
                Problem(place, "prompts", f"no folder {name!r} beside the spec, nor among the built-in ones")
            )
        elif protocol is not None and folder is not None:
            prompts = load_prompts(folder, protocol, dataset.columns if dataset else None, place)
            if dataset is not None:
                problems.extend(column_problems(dataset, prompts, layered.place(("dataset", "path"))))
    except SpecError as error:
        problems.extend(error.problems)
    if problems or dataset is None or protocol is None or prompts is None:
        raise SpecError(problems)
    experiment = from_plain(Experiment, layered.data)
    test = _test_dataset(layered, readers, experiment)
    problems = [
        *tree_problems(experiment, protocol, dataset, _where(layered)),
        *training_problems(experiment, protocol, dataset, test, _where(layered)),
    ]
    if problems:
        raise SpecError(problems)
    cache = None if experiment.cache is None else layered.folder(("cache",)) / experiment.cache
    replays = dict(_replays(layered))
    replayed = {group: readers.journal_hash(run) for group, run in replays.items()}
    return Spec(experiment, protocol, prompts, dataset, replays, replayed, cache, test)


def _where(layered: Layered) -> PlaceOf:
    """A dotted key into the place that set it."""
    return lambda key: layered.place(tuple(key.split(".")))


def _dataset(layered: Layered, readers: _Readers, sound: Sound) -> Dataset:
    settings = from_plain(DatasetSettings, sound.section("dataset"))
    seed = layered.data.get("seed", 0) if "seed" not in sound.broken else 0
    return _read_dataset(layered, readers, settings, seed)


def _read_dataset(layered: Layered, readers: _Readers, settings: DatasetSettings, seed: int) -> Dataset:
    at = ("dataset", "path")
    path = None if settings.path.startswith(HUB) else builtin.find(settings.path, layered.folder(at))
    return readers.dataset(settings, path, seed, _where(layered))


def _test_dataset(layered: Layered, readers: _Readers, experiment: Experiment) -> Dataset | None:
    """The other split of the dataset, which a training run measures its models on."""
    if experiment.training is None or experiment.training.test.scheme == "none":
        return None
    test, where = experiment.training.test, _where(layered)
    settings = replace(experiment.dataset, split=test.split, limit=test.limit)
    try:
        return _read_dataset(layered, readers, settings, experiment.seed)
    except SpecError as error:
        ours = "training.test.split"
        raise SpecError(
            [replace(p, key=ours, place=where(ours)) if p.key == "dataset.split" else p for p in error.problems]
        ) from error


def _protocol(layered: Layered, section: Mapping[str, Any]) -> Protocol:
    known = {field.name for field in fields(Parameters)}
    parameters = {name: value for name, value in section.items() if name in known}
    folder = layered.folder(("protocol", "use"))
    return load_protocol(section["use"], parameters, folder=folder, where=_where(layered))


def _replays(layered: Layered) -> Iterator[tuple[str, Path]]:
    for group, settings in layered.data["models"].items():
        if settings.get("provider") == "replay":
            yield group, replay_folder(layered, group)
