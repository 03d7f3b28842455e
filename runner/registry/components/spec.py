"""Build the component of a spec: one file, merged from the spec and its bases, and copies of the files that it names.

`runner.registry.components.drafts` calls `build_spec`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import NipRunError, ReleaseError, errors_as
from runner.base.hashing import tagged_hash
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.releases.bundle import Content
from runner.documents.releases.manifest import ReleaseLink
from runner.documents.releases.reference import Kind, is_reference
from runner.documents.yaml_writer import dump
from runner.game.protocols.loader import find_protocol
from runner.models.retirements import model_shutdown_facts
from runner.models.settings import NOT_PUBLISHED
from runner.registry.components.files import UnnamedComponent, load_protocol_file, load_template_files
from runner.registry.components.lookup import make_finder_for
from runner.registry.components.spec_entries import collect_trainer_contents
from runner.registry.draft import PublisherChoices
from runner.registry.redaction.rules import choose_public_names
from runner.results.provenance.sources_snapshot import parts_of
from runner.spec.components import USE, ComponentUse, FindComponent
from runner.spec.datasets.loader import HUB
from runner.spec.datasets.transcripts.source import transcript_files
from runner.spec.loader import Spec, load_specs, read_spec_data
from runner.spec.warnings.servers import called_groups
from runner.training.plan import plan_of
from runner.training.weights import is_path, public_model_name

_DATASET, _PROMPTS, _PROTOCOL = "dataset.path", "prompts", "protocol.use"
_FILE_KEYS: Mapping[str, Kind] = {_PROTOCOL: Kind.PROTOCOL, _PROMPTS: Kind.PROMPTS, _DATASET: Kind.DATASET}
"""Keys that name a file, a folder or a release, with the kind of release."""
_USE_SECTIONS: Mapping[str, Kind] = {"models": Kind.MODEL, "agents": Kind.AGENT, "training.trainers": Kind.TRAINER}
"""Sections whose entries can name a release with the key `use`, with the kind of release."""

_RUN_KEYS = re.compile(
    r"rejudge(\.run)?|until\.compare|models\.[^.]+\.(run|from_run|from_group)|training\.(from|rerun_tests)(\..*)?"
)
"""Matches keys that name runs, which other users do not have."""

_UNSAFE_CHARACTERS = re.compile(r"[^A-Za-z0-9._-]")


def build_spec(path: Path, choices: PublisherChoices, part: str | None) -> UnnamedComponent:  # noqa: ARG001 - same parameters for all builders
    """Return the component with a spec, merged with its bases. Its sweep stays. Addresses of servers are removed."""
    find = make_finder_for(path)
    specs = load_specs(path, (), find_component=find)
    layered = read_spec_data(path, find)
    model_groups = [group for spec in specs for group in spec.experiment.models.values()]
    published_names = choose_public_names(
        name for group in model_groups for name in (group.name, group.base_model) if name
    )
    files = _ReleaseFiles(layered, find, published_names)
    data = files.rewrite(layered.data)
    _keep_chat_formats(data, specs[0], files)
    training = specs[0].experiment.training
    trainers = {} if training is None else dict(training.trainers)
    for name in list(trainers):
        if f"training.trainers.{name}" in files.uses:  # the trainer's own release has its files
            del trainers[name]
    stored_scripts, notes_on_missing = collect_trainer_contents(trainers, specs[0])
    return UnnamedComponent(
        files_by_kind=parts_of(specs[0]),
        contents={"spec.yaml": dump(data).encode(), **files.contents, **stored_scripts},
        identity=_identity(specs),
        facts=_facts(specs, published_names),
        links=tuple(files.links()),
        notes=(*dict.fromkeys(files.notes), *notes_on_missing),
        description=specs[0].experiment.description or f"Spec {specs[0].experiment.name}",
    )


def _identity(specs: list[Spec]) -> dict[str, str]:
    """Return hashes: of all points of the sweep; and of the game and the dataset, if all points have the same one."""
    plans = [plan_of(spec) for spec in specs]
    shared = {
        "game": {plan.games.game_hash for plan in plans},
        "dataset": {spec.dataset.sha256 for spec in specs},
    }
    return {
        "spec": tagged_hash("spec points", sorted(plan.identity for plan in plans)),
        **{name: hashes.pop() for name, hashes in shared.items() if len(hashes) == 1},
    }


def _facts(specs: list[Spec], published_names: Mapping[str, str]) -> dict[str, object]:
    first = specs[0].experiment
    return {
        "name": first.name,
        "kind": first.kind,
        "benchmark": first.benchmark or first.name,
        "protocols": sorted({spec.protocol.name for spec in specs}),
        "models": {
            agent: published_names.get(first.models[settings.model].name, first.models[settings.model].name)
            for agent, settings in first.agents.items()
            if settings.model in first.models
        },
        "points": len(specs),
        **model_shutdown_facts(group for spec in specs for group in called_groups(spec).values()),
        "datapoints": sorted({len(spec.dataset.datapoints) for spec in specs}),
    }


def _keep_chat_formats(data: dict[str, Any], loaded: Spec, files: _ReleaseFiles) -> None:
    """Write the `chat_format` of groups without an address: its default depends on the address."""
    for group in files.groups_without_url:
        group_data, settings = data["models"][group], loaded.experiment.models.get(group)
        if settings is not None and settings.chat_format is not None:
            group_data.setdefault("chat_format", settings.chat_format)


@dataclass
class _ReleaseFiles:
    """The files of a spec's release, collected while the spec's data is rewritten."""

    layered: LayeredData
    find: FindComponent
    published_names: Mapping[str, str]
    """The published name of each model name that is a path."""
    contents: dict[str, Content] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    groups_without_url: list[str] = field(default_factory=list)
    """Model groups whose `base_url` was replaced by a placeholder."""
    uses: dict[str, ComponentUse] = field(default_factory=dict)
    """The installed releases that the spec uses, by the key that names them."""
    _release_paths: dict[tuple[str, Path], str] = field(default_factory=dict)

    def rewrite(self, data: Mapping[str, object]) -> dict[str, object]:
        """Return a spec's data, with the paths of files in the release and with the versions of other releases.

        Raises:
            ReleaseError: the spec names a file or a run that others cannot get.
        """
        rewritten: dict[str, Any] = {}
        for name, value in data.items():
            if name == "sweep":
                rewritten[name] = self._rewrite_sweep(value, (name,))
            elif name == "cache":
                self.notes += [] if value is None else ["cache was removed: it is a file of yours"]
            elif name == "execution":
                self.notes.append("execution was removed: users choose how to run the games")
            else:
                rewritten[name] = self._rewrite_value(value, name, (name,))
        return rewritten

    def links(self) -> Iterator[ReleaseLink]:
        """Yield links to the releases that the spec names."""
        for key, use in sorted(self.uses.items()):
            section, _, name = key.partition(".")
            roles = {
                "agents": f"agent:{name}",
                "training": f"trainer:{name.rpartition('.')[2]}",
                "models": f"model:{name}",
            }
            yield ReleaseLink(role=roles.get(section, section), release=use.release, sha256=use.sha256)

    def _rewrite_sweep(self, value: Any, key_path: KeyPath) -> Any:
        """Rewrite a sweep: a mapping from dotted keys to lists of values, also under `zip`, or a list of points.

        A point is a mapping from dotted keys to values.
        """
        if isinstance(value, list):
            return [self._rewrite_sweep(point, (*key_path, index)) for index, point in enumerate(value)]
        if not isinstance(value, dict):
            return value
        rewritten = {}
        for key, values in value.items():
            if key == "zip" and isinstance(values, dict):
                rewritten[key] = self._rewrite_sweep(values, (*key_path, key))
            elif isinstance(values, list):
                rewritten[key] = [self._rewrite_value(value, key, (*key_path, key)) for value in values]
            else:
                rewritten[key] = self._rewrite_value(values, key, (*key_path, key))
        return rewritten

    def _rewrite_value(self, value: Any, key: str, key_path: KeyPath) -> Any:
        """Rewrite the value of a dotted key. `key_path` is its path in the file, for messages."""
        if value is not None and _RUN_KEYS.fullmatch(key):
            raise ReleaseError(
                f"{self.layered.place(key_path)}: {key} names a run of yours, which others do not have; remove {key}, "
                "or replace it by the settings that it takes from the run"
            )
        if isinstance(value, dict):
            return {name: self._rewrite_value(item, f"{key}.{name}", (*key_path, name)) for name, item in value.items()}
        if isinstance(value, list) and key.endswith(".base_url") and all(isinstance(url, str) for url in value):
            return self._rewrite_text(value[0], key, key_path) if value else value  # one placeholder for all addresses
        if not isinstance(value, str):
            return value
        return self._rewrite_text(value, key, key_path)

    def _rewrite_text(self, value: str, key: str, key_path: KeyPath) -> str:
        """Return the text to publish for the value of a dotted key."""
        # In models.NAME.base_url: parent = models.NAME, section = models, entry = NAME, last = base_url.
        parent, _, last = key.rpartition(".")
        section, _, entry = parent.rpartition(".")
        if key in _FILE_KEYS:
            return self._rewrite_name(value, key, key_path)
        if last == USE and section in _USE_SECTIONS:
            return self._use_release(parent, _USE_SECTIONS[section], value)
        if last == "base_url" and section == "models":
            self.groups_without_url += [entry] if key_path[0] == "models" else []
            self.notes.append(f"{key} was removed: users set the address of their own server")
            return NOT_PUBLISHED
        if last in ("model", "base_model") and section == "models" and is_path(value):
            name = self.published_names.get(value) or public_model_name(value)
            self.notes.append(f"{key} was a path; only its last part is published: {name}")
            return name
        return value

    def _rewrite_name(self, value: str, key: str, key_path: KeyPath) -> str:
        """Return the name to publish for a file or release: a path in this release, or a reference with a version."""
        folder = self.layered.folder(key_path)
        if key == _DATASET and value.startswith(HUB):
            return value
        path = find_protocol(value, folder) if key == _PROTOCOL else package_data.find_file(value, folder)
        if path is None and is_reference(value):
            return self._use_release(key.partition(".")[0], _FILE_KEYS[key], value)
        if path is None:
            raise ReleaseError(
                f"{self.layered.place(key_path)}: {key}: there is no file or release {value!r}; correct the name"
            )
        return self._add_path(key, path.resolve())

    def _use_release(self, key: str, kind: Kind, value: str) -> str:
        """Record that the spec uses an installed release, and return its reference with the version."""
        with errors_as(ReleaseError, key, NipRunError):
            use = self.uses[key] = self.find(kind, value)
        return use.release

    def _add_path(self, key: str, path: Path) -> str:
        """Add a file or folder to the release, unless it was added before, and return its path there."""
        existing = self._release_paths.get((key, path))
        if existing is not None:
            return existing
        release_path = self._release_paths[key, path] = self._unused_path(
            _FOLDERS[key], _UNSAFE_CHARACTERS.sub("_", path.name)
        )
        for name, content in _CONTENTS[key](path).items():
            self.contents[f"{release_path}/{name}" if name else release_path] = content
        return release_path

    def _unused_path(self, folder: str, name: str) -> str:
        """Return a path in a folder of the release that is not used yet: NAME, or NAME-2, NAME-3 and so on."""
        used = {path.lower() for path in self._release_paths.values()}
        name = name if re.match(r"[A-Za-z0-9_]", name) else f"_{name}"
        stem, dot, suffix = name[-80:].rpartition(".") if "." in name else (name[-80:], "", "")
        path, number = f"{folder}/{stem}{dot}{suffix}", 1
        while path.lower() in used:
            number += 1
            path = f"{folder}/{stem}-{number}{dot}{suffix}"
        return path


_FOLDERS: Mapping[str, str] = {_PROTOCOL: "protocols", _PROMPTS: "prompts", _DATASET: "data"}
_CONTENTS: Mapping[str, Callable[[Path], Mapping[str, Content]]] = {
    _PROTOCOL: lambda path: {"": load_protocol_file(path)[0]},
    _PROMPTS: load_template_files,
    _DATASET: lambda path: (
        {str(file.relative_to(path)): file for file in transcript_files(path)} if path.is_dir() else {"": path}
    ),
}
"""Functions that return the files to add for a path, by the key that names it. A file's key is its path in the added
folder, or "" if a single file is added."""
