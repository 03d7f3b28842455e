"""Files that extend each other, and overrides, into one resolved mapping with the place of every leaf."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from omegaconf.grammar_parser import parse as parse_interpolation

from runner.documents.reader import Document, KeyPath, parse, read
from runner.errors import Place, Problem
from runner.text import nearest

EXTENDS = "extends"
MAX_EXTENDS = 16


@dataclass(frozen=True)
class Override:
    """One change to what the files say: `KEY=VALUE`, `+KEY=VALUE` or `~KEY`, and where it was written."""

    text: str
    place: Place | None = None


Find = Callable[[str, Path], Path | None]
"""Looks a named file up: what is written and the folder of the file that says it, into a path."""


@dataclass
class Layered:
    """The result of merging: data, where each leaf was set, the folder its paths are relative to."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: list[str] = field(default_factory=list)

    def place(self, at: KeyPath) -> Place:
        """Where a key was set; for one that was not, where the nearest mapping above it was."""
        for end in range(len(at), -1, -1):
            if at[:end] in self.places:
                return self.places[at[:end]]
        return Place(self.files[-1] if self.files else "command line")

    def folder(self, at: KeyPath) -> Path:
        """The folder that a path written at this key is relative to."""
        return self.folders.get(self.place(at).file, Path())


def load_layers(path: Path, shown: str, overrides: Sequence[Override], find: Find) -> Layered:
    """Read a file and all it extends, apply overrides, and resolve interpolations."""
    layered = Layered()
    _add_file(path, shown, find, layered, ())
    for override in overrides:
        _apply_override(override, layered)
    if not layered.problems:
        _resolve(layered)
    return layered


def _add_file(path: Path, shown: str, find: Find, layered: Layered, chain: tuple[Path, ...]) -> None:
    document = read(path, shown)
    layered.files.append(shown)
    layered.folders[shown] = document.folder
    layered.problems.extend(document.problems)
    if document.problems:
        return
    for at, base in _bases(document, layered):
        place = document.places[at]
        found = find(base, document.folder)
        if found is None:
            layered.problems.append(
                Problem(place, EXTENDS, f"no file {base!r} in {str(document.folder)!r}, nor among the built-in ones")
            )
        elif found.resolve() in (*chain, path.resolve()):
            layered.problems.append(Problem(place, EXTENDS, f"{base!r} extends itself, by way of this file"))
        elif len(chain) >= MAX_EXTENDS:
            layered.problems.append(Problem(place, EXTENDS, f"more than {MAX_EXTENDS} files extend each other"))
        else:
            _add_file(found, _shown(found), find, layered, (*chain, path.resolve()))
    document.data.pop(EXTENDS, None)
    _merge(document, layered)


def _shown(found: Path) -> str:
    """How messages name a base file: relative to the working folder where that is shorter."""
    try:
        return str(found.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(found)


def _bases(document: Document, layered: Layered) -> list[tuple[KeyPath, str]]:
    value = document.data.get(EXTENDS)
    if value is None:
        return []
    if isinstance(value, str):
        return [((EXTENDS,), value)]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [((EXTENDS, index), item) for index, item in enumerate(value)]
    problem = Problem(document.places[(EXTENDS,)], EXTENDS, "a file name or a list of file names belongs here")
    layered.problems.append(problem)
    return []


def _merge(document: Document, layered: Layered) -> None:
    layered.data = _merged(layered.data, document.data)
    layered.places.update(document.places)


def _merged(below: Any, above: Any) -> Any:
    """Mappings merge key by key; anything else from above replaces what is below."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}
    return copy.deepcopy(above)


def _apply_override(override: Override, layered: Layered) -> None:
    """`KEY=VALUE` sets, `+KEY=VALUE` adds to a mapping, `~KEY` deletes; keys are dotted."""
    text = override.text
    place = override.place or Place(f"override {text!r}")

    def refuse(key: str, message: str) -> None:
        layered.problems.append(Problem(place, key, message))

    sign = text[0] if text[:1] in ("+", "~") else ""
    name, equals, written = text.removeprefix(sign).partition("=")
    at = tuple(name.split("."))
    if not all(at):
        return refuse(name, "write KEY=VALUE, +KEY=VALUE or ~KEY, with dots between the keys")
    if sign == "~" and equals:
        return refuse(name, "a key is deleted by ~KEY alone, without a value")
    if sign != "~" and not equals:
        return refuse(name, "write KEY=VALUE, +KEY=VALUE or ~KEY")
    parent: Any = layered.data
    for depth, part in enumerate(at[:-1]):
        if not isinstance(parent, dict):
            return refuse(".".join(at[:depth]), f"{parent!r} is no mapping; {name!r} cannot be set in it")
        parent = parent.setdefault(part, {}) if sign != "~" else parent.get(part, {})
    if not isinstance(parent, dict):
        return refuse(".".join(at[:-1]), f"{parent!r} is no mapping; {name!r} cannot be set in it")
    if sign == "~":
        if at[-1] not in parent:
            return refuse(name, f"there is no such key to delete{nearest(at[-1], parent)}")
        del parent[at[-1]]
        return None
    if sign == "+" and at[-1] in parent:
        return refuse(name, f"the key is there already; write {name}=... to change it")
    document = parse(f"value: {written}" if written.strip() else "value: null", Document(place.file, Path()))
    if document.problems:
        # YAML's columns count from our own prefix; the place of an override is the override.
        return refuse(name, document.problems[0].message)
    parent[at[-1]] = document.data["value"]
    layered.places = {old: where for old, where in layered.places.items() if old[: len(at)] != at}
    for end in range(1, len(at) + 1):
        layered.places.setdefault(at[:end], place)
    layered.places[at] = place
    return None


def _resolve(layered: Layered) -> None:
    """Replace every `${key}`; functions such as `${oc.env:X}` are refused, because a spec may be a stranger's."""
    before = len(layered.problems)
    _refuse_resolvers(layered.data, (), layered)
    if len(layered.problems) > before:
        return
    config = OmegaConf.create(layered.data)
    assert isinstance(config, DictConfig)
    layered.data = {str(name): _resolved(config, name, (str(name),), layered) for name in config}


def _resolved(config: Any, key: Any, at: KeyPath, layered: Layered) -> Any:
    """Node by node, so that every broken interpolation is reported and not the first alone."""
    try:
        value = config[key]
    except OmegaConfBaseException as error:
        message = str(error).splitlines()[0]
        layered.problems.append(Problem(layered.place(at), ".".join(map(str, at)), message))
        return None
    if OmegaConf.is_dict(value):
        return {str(name): _resolved(value, name, (*at, str(name)), layered) for name in value}
    if OmegaConf.is_list(value):
        return [_resolved(value, index, (*at, index), layered) for index in range(len(value))]
    return value


def _refuse_resolvers(value: Any, at: KeyPath, layered: Layered) -> None:
    if isinstance(value, dict):
        for name, item in value.items():
            _refuse_resolvers(item, (*at, name), layered)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _refuse_resolvers(item, (*at, index), layered)
    elif isinstance(value, str) and "${" in value:
        message = None
        try:
            if _has_resolver(parse_interpolation(value)):
                message = f"{value!r}: only ${{key}} is allowed, no function such as ${{oc.env:...}}"
        except OmegaConfBaseException as error:
            message = f"{value!r} is no valid interpolation: {str(error).splitlines()[0]}"
        if message:
            layered.problems.append(Problem(layered.place(at), ".".join(map(str, at)), message))


def _has_resolver(node: Any) -> bool:
    if type(node).__name__ == "InterpolationResolverContext":
        return True
    return any(_has_resolver(child) for child in getattr(node, "children", None) or ())


def dump(data: Any) -> str:
    """Data as YAML text that `read` gives back unchanged."""
    escaped = _escaped(data)
    return yaml.safe_dump(escaped, sort_keys=False, allow_unicode=True, width=110)


def _escaped(value: Any) -> Any:
    """Resolved text that holds `${` must not be read as an interpolation the next time."""
    if isinstance(value, dict):
        return {name: _escaped(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_escaped(item) for item in value]
    return value.replace("${", "\\${") if isinstance(value, str) else value
