"""A spec into a component: all that its files say in one, with every file that it names inside the release."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import NipRunError, ReleaseError
from runner.base.hashing import tagged_hash
from runner.documents.layered_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind, is_reference
from runner.documents.yaml_writer import dump
from runner.game.protocols.loader import find_protocol
from runner.models.retirements import shutdown_facts
from runner.models.settings import NOT_PUBLISHED
from runner.registry.components.files import UnnamedComponent, protocol_file, template_files
from runner.registry.components.lookup import finder_of
from runner.registry.components.parts import trainer_contents
from runner.registry.draft import Naming
from runner.registry.redaction.rules import renamed_models
from runner.results.provenance.sources_snapshot import parts_of
from runner.spec.components import USE, ComponentUse, FindComponent
from runner.spec.datasets.loader import HUB
from runner.spec.loader import Spec, load_specs, read_written
from runner.spec.warnings.catalog import asked_groups
from runner.training.plan import plan_of
from runner.training.weights import is_path, without_path

_DATASET, _PROMPTS, _PROTOCOL = "dataset.path", "prompts", "protocol.use"
_NAMES: Mapping[str, Kind] = {_PROTOCOL: Kind.PROTOCOL, _PROMPTS: Kind.PROMPTS, _DATASET: Kind.DATASET}
_USES: Mapping[str, Kind] = {"models": Kind.MODEL, "agents": Kind.AGENT, "training.trainers": Kind.TRAINER}

_OF_RUNS = re.compile(
    r"rejudge(\.run)?|until\.compare|models\.[^.]+\.(run|from_run|from_group)|training\.(from|rerun_tests)(\..*)?"
)
"""Keys that name runs, which are in somebody's own results."""

_ODD = re.compile(r"[^A-Za-z0-9._-]")


def spec(path: Path, naming: Naming, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - as all makers
    """A spec as it is written, with its bases put in: its sweep stays, and `base_url`s are left out."""
    find = finder_of(path)
    specs = load_specs(path, (), find_component=find)
    layered = read_written(path, find)
    asked = [group for one in specs for group in one.experiment.models.values()]
    called = renamed_models(name for group in asked for name in (group.name, group.base_model) if name)
    files = _Files(layered, find, called)
    data = files.rewritten(layered.data)
    _keep_chat_formats(data, specs[0], files)
    training = specs[0].experiment.training
    own = {} if training is None else dict(training.trainers)
    for name in list(own):
        if f"training.trainers.{name}" in files.uses:  # whose own release has them
            del own[name]
    stored, missing = trainer_contents(own, specs[0])
    return UnnamedComponent(
        parts_of(specs[0]),
        {"spec.yaml": dump(data).encode(), **files.contents, **stored},
        _identity(specs),
        _facts(specs, called),
        links=tuple(files.links()),
        notes=(*dict.fromkeys(files.notes), *missing),
        description=specs[0].experiment.description or f"Spec {specs[0].experiment.name}",
    )


def _identity(specs: list[Spec]) -> dict[str, str]:
    """That of the runs of all its points; and of what all of them share."""
    plans = [plan_of(one) for one in specs]
    shared = {
        "game": {plan.games.game_hash for plan in plans},
        "dataset": {one.dataset.sha256 for one in specs},
    }
    return {
        "spec": tagged_hash("spec points", sorted(plan.identity for plan in plans)),
        **{name: found.pop() for name, found in shared.items() if len(found) == 1},
    }


def _facts(specs: list[Spec], called: Mapping[str, str]) -> dict[str, Any]:
    first = specs[0].experiment
    return {
        "name": first.name,
        "kind": first.kind,
        "benchmark": first.benchmark or first.name,
        "protocols": sorted({one.protocol.name for one in specs}),
        "models": {
            agent: called.get(first.models[settings.model].name, first.models[settings.model].name)
            for agent, settings in first.agents.items()
            if settings.model in first.models
        },
        "points": len(specs),
        **shutdown_facts(group for spec in specs for group in asked_groups(spec).values()),
        "datapoints": sorted({len(one.dataset.datapoints) for one in specs}),
    }


def _keep_chat_formats(data: dict[str, Any], loaded: Spec, files: _Files) -> None:
    """Say how models are asked where that followed from the addresses that were taken out."""
    for group in files.unserved:
        said, settings = data["models"][group], loaded.experiment.models.get(group)
        if settings is not None and settings.chat_format is not None:
            said.setdefault("chat_format", settings.chat_format)


@dataclass
class _Files:
    """The files of a spec's release, as the spec's data is gone through."""

    layered: LayeredData
    find: FindComponent
    called: Mapping[str, str]
    """For each model name that is a path, what it is called."""
    contents: dict[str, Content] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    unserved: list[str] = field(default_factory=list)
    """Model groups whose `base_url` was taken out."""
    uses: dict[str, ComponentUse] = field(default_factory=dict)
    _taken: dict[tuple[str, Path], str] = field(default_factory=dict)

    def rewritten(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """A spec's data with what it names inside the release.

        Raises:
            ReleaseError: it names what others cannot have.
        """
        found: dict[str, Any] = {}
        for name, value in data.items():
            if name == "sweep":
                found[name] = self._swept(value, (name,))
            elif name == "cache":
                self.notes += [] if value is None else ["cache was taken out: it is a file of yours"]
            elif name == "execution":
                self.notes.append("execution was taken out: what plays the games is for whoever plays them to say")
            else:
                found[name] = self._value(value, name, (name,))
        return found

    def links(self) -> Iterator[ReleaseLink]:
        """The releases that it names."""
        for slot, use in sorted(self.uses.items()):
            role, _, name = slot.partition(".")
            told = {
                "agents": f"agent:{name}",
                "training": f"trainer:{name.rpartition('.')[2]}",
                "models": f"model:{name}",
            }
            yield ReleaseLink(role=told.get(role, role), release=use.release, sha256=use.sha256)

    def _swept(self, value: Any, at: KeyPath) -> Any:
        """A sweep, whose keys are dotted keys of the spec, with lists of their values."""
        if isinstance(value, list):
            return [self._swept(point, (*at, index)) for index, point in enumerate(value)]
        if not isinstance(value, dict):
            return value
        found = {}
        for key, values in value.items():
            if key == "zip" and isinstance(values, dict):
                found[key] = self._swept(values, (*at, key))
            elif isinstance(values, list):
                found[key] = [self._value(one, key, (*at, key)) for one in values]
            else:
                found[key] = self._value(values, key, (*at, key))
        return found

    def _value(self, value: Any, key: str, at: KeyPath) -> Any:
        """A value at a dotted key of the spec, which is written at `at`."""
        if value is not None and _OF_RUNS.fullmatch(key):
            raise ReleaseError(
                f"{self.layered.place(at)}: {key} names a run of yours, which others have not; take it out, or write "
                "out what it stands for"
            )
        if isinstance(value, dict):
            return {name: self._value(item, f"{key}.{name}", (*at, name)) for name, item in value.items()}
        if isinstance(value, list) and key.endswith(".base_url") and all(isinstance(one, str) for one in value):
            return self._text(value[0], key, at) if value else value
        if not isinstance(value, str):
            return value
        return self._text(value, key, at)

    def _text(self, value: str, key: str, at: KeyPath) -> str:
        above, _, last = key.rpartition(".")
        section, _, entry = above.rpartition(".")
        if key in _NAMES:
            return self._named(value, key, at)
        if last == USE and section in _USES:
            return self._release(above, _USES[section], value)
        if last == "base_url" and section == "models":
            self.unserved += [entry] if at[0] == "models" else []
            self.notes.append(f"{key} was taken out: where a model is served is for whoever plays it to say")
            return NOT_PUBLISHED
        if last in ("model", "base_model") and section == "models" and is_path(value):
            name = self.called.get(value) or without_path(value)
            self.notes.append(f"{key} was a path; its last part stands there, {name}")
            return name
        return value

    def _named(self, value: str, key: str, at: KeyPath) -> str:
        """A file, or a release, that the spec names, as its release names it."""
        folder = self.layered.folder(at)
        if key == _DATASET and value.startswith(HUB):
            return value
        found = find_protocol(value, folder) if key == _PROTOCOL else package_data.find(value, folder)
        if found is None and is_reference(value):
            return self._release(key.partition(".")[0], _NAMES[key], value)
        if found is None:
            raise ReleaseError(f"{self.layered.place(at)}: {key}: there is no {value!r}")
        return self._inside(key, found.resolve())

    def _release(self, slot: str, kind: Kind, value: str) -> str:
        """An installed release, by its own version."""
        try:
            use = self.uses[slot] = self.find(kind, value)
        except NipRunError as error:
            raise ReleaseError(f"{slot}: {error}") from error
        return use.release

    def _inside(self, key: str, found: Path) -> str:
        """Where a file or folder is in the release; one that is named twice is there once."""
        known = self._taken.get((key, found))
        if known is not None:
            return known
        place = self._taken[key, found] = self._free(_FOLDERS[key], _ODD.sub("_", found.name))
        for name, content in _CONTENTS[key](found).items():
            self.contents[f"{place}/{name}" if name else place] = content
        return place

    def _free(self, folder: str, name: str) -> str:
        taken = {place.lower() for place in self._taken.values()}
        name = name if re.match(r"[A-Za-z0-9_]", name) else f"_{name}"
        stem, dot, suffix = name[-80:].rpartition(".") if "." in name else (name[-80:], "", "")
        place, number = f"{folder}/{stem}{dot}{suffix}", 1
        while place.lower() in taken:
            number += 1
            place = f"{folder}/{stem}-{number}{dot}{suffix}"
        return place


def _protocol_of(path: Path) -> dict[str, Content]:
    return {"": protocol_file(path)[0]}


_FOLDERS: Mapping[str, str] = {_PROTOCOL: "protocols", _PROMPTS: "prompts", _DATASET: "data"}
_CONTENTS: Mapping[str, Callable[[Path], Mapping[str, Content]]] = {
    _PROTOCOL: _protocol_of,
    _PROMPTS: template_files,
    _DATASET: lambda path: {"": path},
}
