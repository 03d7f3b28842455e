"""Files that extend each other, and overrides, into one resolved mapping with the place of every leaf."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from runner.documents.reader import Document, KeyPath, parse, read
from runner.errors import Place, Problem
from runner.text import did_you_mean

EXTENDS = "extends"
MAX_EXTENDS = 16
MAX_FILES = 64
MAX_RESOLVED = 1 << 20
_REFERENCE = re.compile(r"(?<!\\)\$\{\s*([^{}]*?)\s*\}")


@dataclass(frozen=True)
class Override:
    """One change to what the files say: `KEY=VALUE`, `+KEY=VALUE` or `~KEY`, and where it was written.

    `value` holds the value where it is data already (a point of a sweep) and no text to be read.
    """

    text: str
    place: Place | None = None
    value: tuple[Any] | None = None


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
    _resolve(layered)
    return layered


def _add_file(path: Path, shown: str, find: Find, layered: Layered, chain: tuple[Path, ...]) -> None:
    document = read(path, shown)
    layered.files.append(shown)
    layered.folders[shown] = document.folder
    layered.problems.extend(document.problems)
    if not document.data:
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
        elif len(chain) >= MAX_EXTENDS or len(layered.files) >= MAX_FILES:
            message = f"more than {MAX_EXTENDS} files extend each other, or {MAX_FILES} are read in all"
            layered.problems.append(Problem(place, EXTENDS, message))
            return
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
    replaced = [at for at in document.places if not isinstance(_value_at(document.data, at), dict)]
    for at in replaced:
        _forget_below(layered, at)
    layered.data = _merged(layered.data, document.data)
    layered.places.update(document.places)


def _value_at(data: Any, at: KeyPath) -> Any:
    for part in at:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _forget_below(layered: Layered, at: KeyPath) -> None:
    """Drop the places of keys that are no more."""
    layered.places = {old: place for old, place in layered.places.items() if old[: len(at)] != at}


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
            return refuse(name, f"there is no such key to delete{did_you_mean(at[-1], parent)}")
        del parent[at[-1]]
        return None
    if sign == "+" and at[-1] in parent:
        return refuse(name, f"the key is there already; write {name}=... to change it")
    if override.value is not None:
        parent[at[-1]] = escaped(override.value[0])
    else:
        document = parse(f"value: {written}" if written.strip() else "value: null", Document(place.file, Path()))
        if document.problems:
            # YAML's columns count from our own prefix; the place of an override is the override.
            return refuse(name, document.problems[0].message)
        if set(document.data) != {"value"}:
            return refuse(name, "one value belongs here, not several lines")
        parent[at[-1]] = document.data["value"]
    _forget_below(layered, at)
    for end in range(1, len(at) + 1):
        layered.places.setdefault(at[:end], place)
    layered.places[at] = place
    return None


def _resolve(layered: Layered) -> None:
    """Replace every `${key}`; what would grow without bound, or refers to itself, is refused before."""
    size = _Sizes(layered.data).total()
    if size > MAX_RESOLVED:
        message = f"the interpolations grow to more than {MAX_RESOLVED >> 20} MiB"
        layered.problems.append(Problem(layered.place(()), "", message))
        return
    config = OmegaConf.create(layered.data)
    assert isinstance(config, DictConfig)
    layered.data = {str(name): _resolved(config, name, (str(name),), layered) for name in config}


class _Sizes:
    """How large data is once its interpolations are resolved, without resolving them: characters and nodes.

    What refers to itself counts nothing here: OmegaConf reports it.
    """

    def __init__(self, data: dict[str, Any]) -> None:
        self._data = data
        self._known: dict[KeyPath, int] = {}

    def total(self) -> int:
        return self._size((), ())

    def _size(self, at: KeyPath, under: tuple[KeyPath, ...]) -> int:
        if at in under:
            return 0
        if at not in self._known:
            self._known[at] = self._fresh_size(at, (*under, at))
        return self._known[at]

    def _fresh_size(self, at: KeyPath, under: tuple[KeyPath, ...]) -> int:
        value: Any = self._data
        for part in at:
            try:
                value = value[int(part)] if isinstance(value, list) else value[str(part)]
            except (KeyError, IndexError, TypeError, ValueError):
                return 0  # a key that is not there is OmegaConf's to report
        if isinstance(value, (dict, list)):
            names = value if isinstance(value, dict) else range(len(value))
            return 1 + sum(self._size((*at, name), under) for name in names)
        size = 1 + len(str(value))
        for found in _REFERENCE.finditer(value if isinstance(value, str) else ""):
            size += self._size(self._target(found[1], at), under)
        return size

    def _target(self, reference: str, at: KeyPath) -> KeyPath:
        name = reference.lstrip(".")
        dots = len(reference) - len(name)
        base = at[: len(at) - dots] if dots else ()
        parts = [part for part in re.split(r"[.\[\]]", name) if part]
        return (*base, *parts)


def _resolved(config: Any, key: Any, at: KeyPath, layered: Layered) -> Any:
    """Node by node, so that every broken interpolation is reported and not the first alone."""
    if OmegaConf.is_missing(config, key):
        return "???"  # OmegaConf's mark for a missing value is a text like any other here
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


def dump(data: Any) -> str:
    """Data as YAML text that `read` gives back unchanged."""
    return yaml.dump(escaped(data), Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110)


def escaped(value: Any) -> Any:
    """Resolved data, written so that no text of it is read as an interpolation the next time."""
    if isinstance(value, dict):
        return {name: escaped(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [escaped(item) for item in value]
    return re.sub(r"(\\*)\$\{", lambda found: found[1] * 2 + "\\${", value) if isinstance(value, str) else value


class _Dumper(yaml.SafeDumper):
    """Quotes every text that is not plainly a word: readers differ on what else looks like a number."""


_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*")
_RESERVED = frozenset(("yes", "no", "on", "off", "true", "false", "null", "y", "n", "nan", "inf"))


def _text_node(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    plain = _PLAIN.fullmatch(text) and text.lower() not in _RESERVED
    style = None if plain else "|" if "\n" in text and _is_block(text) else '"'
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


def _is_block(text: str) -> bool:
    """Whether a text of several lines survives as a literal block."""
    return text.isprintable() or (
        all(c == "\n" or c.isprintable() for c in text) and not re.search(r" \n| $|^\s", text)
    )


_Dumper.add_representer(str, _text_node)
