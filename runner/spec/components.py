"""Resolve the releases that a spec names by reference into files and settings.

A spec may name an installed release `owner/name@version` instead of the path of a component. In an entry of `agents`,
`models` and `training.trainers`, the key `use` has the reference, and the entry's other keys take precedence over the
release. A file or folder of that name takes precedence over a release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import NipRunError, UsageError
from runner.base.problems import Problem
from runner.documents.dataclass_schema import from_plain
from runner.documents.layer_loading import load_layers
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import KeyPath, dotted, value_at
from runner.documents.releases.reference import Kind, is_reference
from runner.documents.source_tree import ProjectTree
from runner.models.settings import NOT_PUBLISHED, ModelSettings
from runner.spec.chat_formats import resolve_chat_formats

USE = "use"
"""Key of an agent, a model group or a trainer that names an installed release."""
MODEL_GROUP = "model_group"
"""Key in an agent's file with its model group, which the agent's `model` names."""
WEIGHTS = "weights"
"""Key in a model's file with facts about its weights, which runs do not need."""

_RUN_KEYS = ("run", "from_run", "from_group")
"""Keys of a model group that name another source of its model than `use`."""


@dataclass(frozen=True)
class ComponentUse:
    """A release that a spec names, and the file or folder that replaces the reference."""

    path: Path
    release: str
    """`kind/owner/name@version` with an exact version."""
    sha256: str
    """SHA-256 of its manifest."""

    @property
    def folder(self) -> Path:
        """The folder of the release."""
        return self.path if package_data.is_folder(self.path) else self.path.parent


FindComponent = Callable[[Kind, str], ComponentUse]
"""Looks up an installed release by its name in a spec; raises `UsageError` or `ReleaseError` if unusable."""


def reject_references(kind: Kind, name: str) -> ComponentUse:
    """Raise an error. This function takes the place of `FindComponent` if there is no access to installed releases.

    Raises:
        UsageError: always.
    """
    raise UsageError(f"{kind} {name}: to use a release, load the spec with nip-run or `runner.load_spec`")


@dataclass
class Components:
    """The releases that one point of a spec names."""

    find_component: FindComponent
    tree: ProjectTree
    """The folders with files that the spec may read. The folders of the releases are added to them."""
    uses: dict[str, ComponentUse] = field(default_factory=dict)
    """The releases so far, by the place that names them (slot), such as `prompts` and `agents.verifier`."""
    _added_groups: dict[str, Any] = field(default_factory=dict)
    """Model groups that agents added."""

    def find_base(self, name: str, folder: Path) -> Path | None:
        """Return the file that a spec extends: a local file or an installed spec. Return None if there is none.

        Raises:
            NipRunError: the installed spec cannot be used.
        """
        path = package_data.find_file(name, folder)
        if path is not None:
            return path
        index = sum(slot.startswith("extends:") for slot in self.uses)
        use = self._look_up(f"extends:{index}", Kind.SPEC, name)
        return None if use is None else use.path

    def resolve(self, layered: LayeredData) -> Iterator[Problem]:
        """Replace each reference in a spec's data by the path or the settings of its release; yield problems."""
        for key_path, kind in _PATH_KEYS:
            yield from self._resolve_path(layered, key_path, kind)
        for section, kind in _ENTRY_SECTIONS:
            entries = value_at(layered.data, section)
            for name in list(entries) if isinstance(entries, dict) else ():
                if isinstance(entries[name], dict) and USE in entries[name]:
                    yield from self._resolve_entry(layered, (*section, name), kind)

    def _look_up(self, slot: str, kind: Kind, name: str) -> ComponentUse | None:
        """Add the release that a name refers to, and return it; None if the name is not a reference.

        Raises:
            NipRunError: the release cannot be used, or the name lacks the version of an installed release.
        """
        if not is_reference(name):
            self._check_has_version(kind, name)
            return None
        use = self.uses[slot] = self.find_component(kind, name)
        self.tree.extra_folders.append(use.folder.resolve())
        return use

    def _check_has_version(self, kind: Kind, name: str) -> None:
        """Check that a name is not an installed release without its version.

        Raises:
            UsageError: it is; the message shows the version to add.
        """
        if "@" in name or not is_reference(f"{name}@1"):
            return
        try:
            version = self.find_component(kind, name).release.rpartition("@")[2]
        except NipRunError:
            return
        raise UsageError(
            f"no such file; to use the installed release, add its version: {name}@{version}; for the newest: "
            f"{name}@latest"
        )

    def _resolve_path(self, layered: LayeredData, key_path: KeyPath, kind: Kind) -> Iterator[Problem]:
        name = value_at(layered.data, key_path)
        if not isinstance(name, str) or package_data.find_file(name, layered.folder(key_path)):
            return
        section = value_at(layered.data, key_path[:-1])
        try:
            use = self._look_up(str(key_path[0]), kind, name)
        except NipRunError as error:
            yield layered.problem_at(key_path, str(error))
            del section[key_path[-1]]  # prevents a second problem about a missing file
            return
        if use is not None:
            section[key_path[-1]] = str(use.path)

    def _resolve_entry(self, layered: LayeredData, key_path: KeyPath, kind: Kind) -> Iterator[Problem]:
        entry = value_at(layered.data, key_path)
        name, use_path = entry.pop(USE), (*key_path, USE)
        if name is None:
            return
        try:
            use = self._look_up(dotted(key_path), kind, name) if isinstance(name, str) else None
        except NipRunError as error:
            yield layered.problem_at(use_path, str(error))
            return
        if use is None:
            message = "`use` must be a reference such as OWNER/NAME@VERSION; a path is not allowed here"
            yield layered.problem_at(use_path, message)
            return
        content = load_layers(use.path, str(use.path), (), lambda *_: None, tree=self.tree)
        if content.problems:
            yield from content.problems
            return
        layered.folders.update(content.folders)  # marks the spec as fetched
        yield from self._merge_component(layered, key_path, content, use)

    def _merge_component(
        self, layered: LayeredData, key_path: KeyPath, content: LayeredData, use: ComponentUse
    ) -> Iterator[Problem]:
        content.data.pop(WEIGHTS, None)
        group = content.data.pop(MODEL_GROUP, None) if key_path[0] == "agents" else None
        for key in _RUN_KEYS if key_path[0] == "models" else ():
            if content.data.get(key) is not None:
                yield content.problem_at(
                    (key,), f"{use.release} names a run, so it cannot be used; use another release"
                )
                return
        sets_model = "model" in value_at(layered.data, key_path)
        _add_missing_keys(layered, key_path, content, ())
        if isinstance(group, dict) and not sets_model:
            content.data[MODEL_GROUP] = group
            yield from self._add_group(layered, key_path, content, use)

    def _add_group(
        self, layered: LayeredData, key_path: KeyPath, content: LayeredData, use: ComponentUse
    ) -> Iterator[Problem]:
        """Add the model group of an agent's release to the spec.

        If the spec has a group of the same name and the same model, the agent uses that group. If its model differs,
        the added group is called `AGENT_GROUP`. If it sets no model, its keys take precedence over the release.
        """
        group_name, group = content.data.get("model"), content.data[MODEL_GROUP]
        models = layered.data.setdefault("models", {})
        if not isinstance(group_name, str) or not isinstance(models, dict):
            return  # The schema check reports the wrong type.
        prefixed_name = f"{key_path[-1]}_{group_name}"
        for name in (group_name, prefixed_name):
            existing = models.get(name)
            is_defined = isinstance(existing, dict) and bool(existing.keys() & {"model", "provider", "from_run"})
            is_from_spec = is_defined and name not in self._added_groups
            if is_from_spec:
                is_usable = _is_same_model(existing, group)
            else:
                is_usable = self._added_groups.setdefault(name, group) == group
            if is_usable:
                value_at(layered.data, key_path)["model"] = name
                if not is_from_spec and isinstance(models.setdefault(name, {}), dict):
                    _add_missing_keys(layered, ("models", name), content, (MODEL_GROUP,))
                return
        used_names = f"{group_name!r} and {prefixed_name!r}"
        message = f"{use.release} adds a model group {group_name!r}, but the spec has other groups called {used_names}"
        key = dotted(key_path)
        yield layered.problem_at(key_path, f"{message}; rename one of those, or set {key}.model to the group to use")


def _is_same_model(local: Any, added: Mapping[str, object]) -> bool:
    """Return whether a group of the spec and an added group are the same model. Their servers may differ."""
    if added.get("base_url") == NOT_PUBLISHED and local.get("base_url"):
        added = {**added, "base_url": local["base_url"]}
    written = {"local": local, "added": added}
    try:
        settings = resolve_chat_formats(
            {name: from_plain(ModelSettings, group) for name, group in written.items()}, written, {}
        )
    except (TypeError, ValueError, KeyError):  # The schema check reports invalid settings.
        return False
    return settings["local"] == settings["added"]


_PATH_KEYS: tuple[tuple[KeyPath, Kind], ...] = (
    (("protocol", "use"), Kind.PROTOCOL),
    (("prompts",), Kind.PROMPTS),
    (("dataset", "path"), Kind.DATASET),
)
_ENTRY_SECTIONS: tuple[tuple[KeyPath, Kind], ...] = (
    (("models",), Kind.MODEL),
    (("agents",), Kind.AGENT),
    (("training", "trainers"), Kind.TRAINER),
)


def _add_missing_keys(layered: LayeredData, key_path: KeyPath, content: LayeredData, source: KeyPath) -> None:
    """Add each key that a component sets and the spec does not, with its place in the component's file."""
    target, added = value_at(layered.data, key_path), value_at(content.data, source)
    for name, value in added.items():
        if name not in target:
            target[name] = value
            source_path = (*source, name)
            layered.places.update(
                {
                    (*key_path, *path[len(source) :]): place
                    for path, place in content.places.items()
                    if path[: len(source_path)] == source_path
                }
            )
        elif isinstance(value, dict) and isinstance(target[name], dict):
            _add_missing_keys(layered, (*key_path, name), content, (*source, name))


def drop_consequences(problems: Iterable[Problem], unusable: Iterable[Problem]) -> list[Problem]:
    """Return `problems` without consequences of the problems in `unusable`, which are about releases."""
    keys = {problem.key for problem in unusable}
    parents = {key.rpartition(".")[0] for key in keys if "." in key}
    missing = tuple(f"missing key: {key};" for key in keys)
    return [
        problem
        for problem in problems
        if not problem.message.startswith(missing)
        and not any(f"{problem.key}.".startswith(f"{key}.") for key in parents)
    ]


def manifest_entries(uses: Mapping[str, ComponentUse]) -> dict[str, dict[str, str]]:
    """Return the used releases in the format of a run's manifest."""
    return {slot: {"release": use.release, "sha256": use.sha256} for slot, use in sorted(uses.items())}
