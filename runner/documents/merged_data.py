"""The result of merging files and overrides: the data, and the place where every key was set.

`runner.documents.layer_loading` builds it, and the checks of a spec report problems with it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.base.problems import Place, Problem
from runner.documents.plain_values import KeyPath, dotted
from runner.documents.source_tree import ProjectTree
from runner.documents.yaml_reader import place_in


@dataclass(frozen=True)
class RenamedKey:
    """A key that a file spells by its old name, which still works."""

    place: Place
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}: {self.old!r} is now {self.new!r}"


@dataclass(frozen=True)
class ReadFile:
    """The bytes of a file that was read, and the paths of the files that it extends, by their names in the file."""

    path: Path
    content: bytes
    bases: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class KeyRules:
    """The rules for the keys of one kind of file. `*` matches any one name."""

    valid: Collection[str] | None = None
    """The valid keys at the top; None: any. The data of a file outside the project with other keys is ignored."""
    renamed: Mapping[str, str] = field(default_factory=dict)
    """The new name of each old dotted key that still works."""
    removable: frozenset[KeyPath] = frozenset()
    """Keys that a null deletes."""
    resettable: frozenset[KeyPath] = frozenset()
    """Keys that a null deletes if they are inherited. Otherwise null is an invalid value for them."""


ANY_KEYS = KeyRules()


@dataclass
class LayeredData:
    """Merged data, with the place of each key and the folder that each file's paths are relative to."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    """The folder of each file, by the file's name in messages."""
    problems: list[Problem] = field(default_factory=list)
    wrong_nulls: list[Problem] = field(default_factory=list)
    """Problems with nulls that delete nothing. They do not affect the rest of the data."""
    files: list[str] = field(default_factory=list)
    """The names of the files in messages."""
    read_files: list[ReadFile] = field(default_factory=list)
    """The files that were read, each before the files that it extends."""
    renamed_keys: list[RenamedKey] = field(default_factory=list)
    tree: ProjectTree | None = None
    """Files whose contents may appear in error messages; None means all files."""
    has_foreign_data: bool = False
    """Whether part of the data came from a file outside `tree`."""
    interpolated: set[KeyPath] = field(default_factory=set)
    """Keys whose text had a `${key}` in it; filled only if `has_foreign_data`."""
    foreign_keys: set[KeyPath] = field(default_factory=set)
    """Keys whose value came, at least in part, from a file outside `tree`; filled only if `has_foreign_data`."""
    rules: KeyRules = ANY_KEYS

    def place(self, key_path: KeyPath) -> Place:
        """Return the place where a key was set, or else the nearest mapping above it.

        If any data came from a file outside `tree`, messages may not quote any place: a value may come from that file
        through a `${key}`, and a message may name neighboring keys.
        """
        place = self._place(key_path)
        return replace(place, is_own=False) if self.has_foreign_data else place

    def problem_at(self, key_path: KeyPath, message: str) -> Problem:
        """Return a problem with the value of a key."""
        return Problem(self.place(key_path), dotted(key_path), message)

    def place_of_value(self, key_path: KeyPath) -> Place:
        """Return the place for a message about one value only, which may be quoted if no foreign file affects it."""
        derived = any(key_path[:end] in self.interpolated for end in range(len(key_path)))
        is_all_own = key_path in self.places and key_path not in self.foreign_keys and not derived
        return self._place(key_path) if is_all_own else self.place(key_path)

    def find_foreign_keys(self) -> None:
        """Fill `interpolated` and `foreign_keys`. Call this after all files are merged, before resolving `${key}`."""
        if not self.has_foreign_data:
            return
        self.interpolated = set(_interpolated_keys(self.data, ()))
        foreign_keys = (key for key, place in self.places.items() if not place.is_own)
        self.foreign_keys = {key[:end] for key in (*foreign_keys, *self.interpolated) for end in range(len(key) + 1)}

    def _place(self, key_path: KeyPath) -> Place:
        return place_in(self.places, key_path) or Place(self.files[-1] if self.files else "command line")

    def may_quote(self, key_path: KeyPath, path: Path) -> bool:
        """Return whether messages may quote the file at `path` that a key names: the user set it, or `tree` has it."""
        return not self.is_set_by_file(key_path) or self.tree is None or self.tree.contains(path)

    def is_set_by_file(self, key_path: KeyPath) -> bool:
        """Return whether a file set this key, rather than an override."""
        return self.place(key_path).file in self.folders

    def folder(self, key_path: KeyPath) -> Path:
        """Return the folder that a path written at this key is relative to."""
        return self.folders.get(self.place(key_path).file, Path())

    def is_removable(self, key_path: KeyPath) -> bool:
        """Return whether a null always deletes this key."""
        return _matches_any(key_path, self.rules.removable)

    def is_resettable(self, key_path: KeyPath, inherited: Any) -> bool:
        """Return whether a null deletes this key from the inherited mapping, which resets the key to its default."""
        is_inherited = isinstance(inherited, dict) and key_path[-1] in inherited
        return is_inherited and _matches_any(key_path, self.rules.resettable)

    def copy_places(self, source: KeyPath, target: KeyPath) -> None:
        """Copy the places of `source` and the keys below it to `target`. The value was copied before."""
        copied = {
            (*target, *key[len(source) :]): place for key, place in self.places.items() if key[: len(source)] == source
        }
        self.places.update(copied)
        for keys in (self.interpolated, self.foreign_keys):
            keys.update([(*target, *key_path[len(source) :]) for key_path in keys if key_path[: len(source)] == source])

    def drop_places(self, key_path: KeyPath) -> None:
        """Drop the places of a key and the keys below it."""
        self.places = {old: place for old, place in self.places.items() if old[: len(key_path)] != key_path}


def _matches_any(key_path: KeyPath, keys: frozenset[KeyPath]) -> bool:
    return any(
        len(key) == len(key_path) and all(part in ("*", name) for part, name in zip(key, key_path, strict=True))
        for key in keys
    )


def _interpolated_keys(value: Any, key_path: KeyPath) -> Iterator[KeyPath]:
    """Yield the keys whose text contains a `${key}`."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _interpolated_keys(item, (*key_path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _interpolated_keys(item, (*key_path, index))
    elif isinstance(value, str) and "${" in value:
        yield key_path
