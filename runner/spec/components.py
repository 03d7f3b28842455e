"""Releases that a spec names by reference, into the files and settings that stand for them.

`owner/name@version` may stand wherever a path to a component may; in an entry of `agents`, `models` and
`training.trainers` it stands at `use`, and what it holds is taken beneath what the entry says itself. A file or folder
that is there under such a name is meant before any release.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.base import package_data
from runner.base.errors import NipRunError, Problem, UsageError
from runner.documents.dataclass_schema import from_plain
from runner.documents.layer_merge import load_layers
from runner.documents.layered_data import LayeredData
from runner.documents.plain_values import KeyPath
from runner.documents.releases.reference import Kind, is_reference
from runner.documents.source_tree import ProjectTree
from runner.models.settings import NOT_PUBLISHED, ModelSettings
from runner.spec.chat_formats import resolved

USE = "use"
MODEL_GROUP = "model_group"
"""In an agent's file: the group of its model, which is called as its `model` says."""
WEIGHTS = "weights"
"""In a model's file: what is known of its weights, which no run needs to know."""

_OF_RUNS = ("run", "from_run", "from_group")


@dataclass(frozen=True)
class ComponentUse:
    """A release that a spec names: the file or folder that it stands for, and which release it is."""

    path: Path
    release: str
    """`kind/owner/name@version`, never the newest."""
    sha256: str
    """Of its manifest."""

    @property
    def folder(self) -> Path:
        """That of the release."""
        return self.path if package_data.is_folder(self.path) else self.path.parent


FindComponent = Callable[[Kind, str], ComponentUse]
"""Looks an installed release up, as a spec names it. Raises `UsageError` or `ReleaseError` where it cannot be used."""


def none_installed(kind: Kind, named: str) -> ComponentUse:
    """Finds none: for specs that are loaded apart from what is installed."""
    raise UsageError(f"{kind} {named}: releases are found where a spec is loaded by nip-run or `runner.load_spec`")


@dataclass
class Components:
    """The releases that one point of a spec names, by slot, as they are found."""

    look_up: FindComponent
    tree: ProjectTree
    uses: dict[str, ComponentUse] = field(default_factory=dict)
    _brought: dict[str, Any] = field(default_factory=dict)
    """Model groups that came with agents."""

    def find_base(self, name: str, folder: Path) -> Path | None:
        """What a spec extends: a file, or an installed spec.

        Raises:
            NipRunError: that spec cannot be used.
        """
        found = package_data.find_file(name, folder)
        if found is None and (hint := self._versionless(Kind.SPEC, name)):
            raise UsageError(hint)
        if found is None and is_reference(name):
            number = sum(slot.startswith("extends:") for slot in self.uses)
            return self._found(f"extends:{number}", Kind.SPEC, name).path
        return found

    def take(self, layered: LayeredData) -> Iterator[Problem]:
        """Put what is named by reference into the data of a spec, in the place of the references."""
        for at, kind in _PATHS:
            yield from self._take_path(layered, at, kind)
        for above, kind in _ENTRIES:
            entries = _value(layered.data, above)
            for name in list(entries) if isinstance(entries, dict) else ():
                if isinstance(entries[name], dict) and USE in entries[name]:
                    yield from self._take_entry(layered, (*above, name), kind)

    def _found(self, slot: str, kind: Kind, named: str) -> ComponentUse:
        use = self.uses[slot] = self.look_up(kind, named)
        self.tree.extra_folders.append(use.folder.resolve())
        return use

    def _versionless(self, kind: Kind, named: str) -> str | None:
        """What to say of a name that is no path but that of an installed release, without its version."""
        if "@" in named or not is_reference(f"{named}@1"):
            return None
        try:
            version = self.look_up(kind, named).release.rpartition("@")[2]
        except NipRunError:
            return None
        return (
            f"there is no such file, and a release is named with its version: {named}@{version}, which is installed, "
            f"or {named}@latest"
        )

    def _take_path(self, layered: LayeredData, at: KeyPath, kind: Kind) -> Iterator[Problem]:
        named = _value(layered.data, at)
        if not isinstance(named, str) or package_data.find_file(named, layered.folder(at)):
            return
        if hint := self._versionless(kind, named):
            yield _problem(layered, at, hint)
            del _value(layered.data, at[:-1])[at[-1]]
            return
        if not is_reference(named):
            return
        try:
            use = self._found(str(at[0]), kind, named)
        except NipRunError as error:
            yield _problem(layered, at, str(error))
            named_by = _value(layered.data, at[:-1])
            del named_by[at[-1]]  # what else there is to say of it would be that there is no such file
            return
        _value(layered.data, at[:-1])[at[-1]] = str(use.path)

    def _take_entry(self, layered: LayeredData, at: KeyPath, kind: Kind) -> Iterator[Problem]:
        entry = _value(layered.data, at)
        named, said = entry.pop(USE), (*at, USE)
        if named is None:
            return
        if not isinstance(named, str) or not is_reference(named):
            hint = self._versionless(kind, named) if isinstance(named, str) else None
            wrong = "a reference belongs here: OWNER/NAME@VERSION; a path cannot stand here"
            yield _problem(layered, said, hint or wrong)
            return
        try:
            use = self._found(".".join(map(str, at)), kind, named)
        except NipRunError as error:
            yield _problem(layered, said, str(error))
            return
        content = load_layers(use.path, str(use.path), (), lambda *_: None, tree=self.tree)
        if content.problems:
            yield from content.problems
            return
        layered.folders.update(content.folders)  # so that the spec counts as one that came from elsewhere
        yield from self._take_content(layered, at, content, use)

    def _take_content(
        self, layered: LayeredData, at: KeyPath, content: LayeredData, use: ComponentUse
    ) -> Iterator[Problem]:
        content.data.pop(WEIGHTS, None)
        group = content.data.pop(MODEL_GROUP, None) if at[0] == "agents" else None
        for key in _OF_RUNS if at[0] == "models" else ():
            if content.data.get(key) is not None:
                yield _problem(content, (key,), f"a published model names no run; {use.release} cannot be used")
                return
        said_its_model = "model" in _value(layered.data, at)
        _put_beneath(layered, at, content, ())
        if isinstance(group, dict) and not said_its_model:
            content.data[MODEL_GROUP] = group
            yield from self._take_group(layered, at, content, use)

    def _take_group(
        self, layered: LayeredData, at: KeyPath, content: LayeredData, use: ComponentUse
    ) -> Iterator[Problem]:
        """Add the model group that an agent brings, beneath what the spec says of a group of this name.

        The agent plays by the spec's own group of this name if that is the same model. If it is another one, the group
        is called `AGENT_GROUP`.
        """
        named, group = content.data.get("model"), content.data[MODEL_GROUP]
        models = layered.data.setdefault("models", {})
        if not isinstance(named, str) or not isinstance(models, dict):
            return  # which the schema finds
        own = f"{at[-1]}_{named}"
        for name in (named, own):
            there = models.get(name)
            is_defined = isinstance(there, dict) and bool(there.keys() & {"model", "provider", "from_run"})
            is_own = is_defined and name not in self._brought
            if not (_is_same_model(there, group) if is_own else self._brought.setdefault(name, group) == group):
                continue
            _value(layered.data, at)["model"] = name
            if not is_own and isinstance(models.setdefault(name, {}), dict):
                _put_beneath(layered, ("models", name), content, (MODEL_GROUP,))
            return
        message = f"{use.release} brings a model group {named!r}, and there are others called {named!r} and {own!r}"
        key = ".".join(map(str, at))
        yield _problem(layered, at, f"{message}; rename one of those, or set {key}.model to the one to play by")


def _is_same_model(ours: Any, brought: Mapping[str, Any]) -> bool:
    """Whether a model group of the spec is the one that an agent brings, wherever it is served."""
    if brought.get("base_url") == NOT_PUBLISHED and ours.get("base_url"):
        brought = {**brought, "base_url": ours["base_url"]}
    said = {"ours": ours, "brought": brought}
    try:
        groups = resolved({name: from_plain(ModelSettings, group) for name, group in said.items()}, said, {})
    except (TypeError, ValueError, KeyError):  # which the schema finds
        return False
    return groups["ours"] == groups["brought"]


_PATHS: tuple[tuple[KeyPath, Kind], ...] = (
    (("protocol", "use"), Kind.PROTOCOL),
    (("prompts",), Kind.PROMPTS),
    (("dataset", "path"), Kind.DATASET),
)
_ENTRIES: tuple[tuple[KeyPath, Kind], ...] = (
    (("models",), Kind.MODEL),
    (("agents",), Kind.AGENT),
    (("training", "trainers"), Kind.TRAINER),
)


def _put_beneath(layered: LayeredData, at: KeyPath, content: LayeredData, source: KeyPath) -> None:
    """Add what a component says, and the spec does not, with the places where it says it."""
    mine, theirs = _value(layered.data, at), _value(content.data, source)
    for name, value in theirs.items():
        if name not in mine:
            mine[name] = value
            key = (*source, name)
            layered.places.update(
                {
                    (*at, *where[len(source) :]): place
                    for where, place in content.places.items()
                    if where[: len(key)] == key
                }
            )
        elif isinstance(value, dict) and isinstance(mine[name], dict):
            _put_beneath(layered, (*at, name), content, (*source, name))


def _value(data: Any, at: KeyPath) -> Any:
    for part in at:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _problem(layered: LayeredData, at: KeyPath, message: str) -> Problem:
    return Problem(layered.place(at), ".".join(map(str, at)), message)


def without_what_follows(problems: Iterable[Problem], refused: Iterable[Problem]) -> list[Problem]:
    """Problems without those of what a release would have held that cannot be used."""
    keys = {problem.key for problem in refused}
    above = {key.rpartition(".")[0] for key in keys if "." in key}
    missing = tuple(f"missing key: {key};" for key in keys)
    return [
        one
        for one in problems
        if not one.message.startswith(missing) and not any(f"{one.key}.".startswith(f"{key}.") for key in above)
    ]


def recorded(uses: Mapping[str, ComponentUse]) -> dict[str, dict[str, str]]:
    """As a run's manifest has them."""
    return {slot: {"release": use.release, "sha256": use.sha256} for slot, use in sorted(uses.items())}
