"""What merging files and overrides gives: data, with the place of every leaf."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from runner.base.errors import Place, Problem
from runner.documents.plain_values import KeyPath
from runner.documents.source_tree import OwnTree
from runner.documents.yaml_reader import place_in


@dataclass(frozen=True)
class RenamedKey:
    """A key that was written by an old name, which still works: where, and both names."""

    place: Place
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}: {self.old!r} is now {self.new!r}"


@dataclass(frozen=True)
class FileRead:
    """A file as it was read: its exact bytes, and the files that it extends, each as it calls it."""

    path: Path
    content: bytes
    bases: dict[str, Path] = field(default_factory=dict)


@dataclass
class LayeredData:
    """The result of merging: data, where each leaf was set, the folder its paths are relative to."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    wrong_nulls: list[Problem] = field(default_factory=list)
    """Problems of nulls that take nothing away. The rest of the data is what it would be without them."""
    files: list[str] = field(default_factory=list)
    read: list[FileRead] = field(default_factory=list)
    """The files themselves, each before those that it extends."""
    renamed: list[RenamedKey] = field(default_factory=list)
    tree: OwnTree | None = None
    """The files of which it may be told what stands in them; None: all."""
    has_others: bool = False
    """Whether something came from a file that is none of those."""
    interpolated: set[KeyPath] = field(default_factory=set)
    """With `has_others`: the texts that had a `${key}` in them."""
    mixed: set[KeyPath] = field(default_factory=set)
    """With `has_others`: keys whose value is not the spec's own, or not wholly."""
    removable: frozenset[KeyPath] = frozenset()
    """The keys that null takes away; `*` is any one name."""
    resettable: frozenset[KeyPath] = frozenset()
    """The keys that null takes away where they are inherited; elsewhere it is a value, and a wrong one."""

    def place(self, at: KeyPath) -> Place:
        """Where a key was set; for one that was not, where the nearest mapping above it was.

        Once something came from somebody else's file, no place is the spec's own: a value may have come by way of
        a `${key}`, and a message may name its neighbours.
        """
        found = self._place(at)
        return replace(found, is_own=False) if self.has_others else found

    def place_of_value(self, at: KeyPath) -> Place:
        """`place`, for a message that tells of nothing but this key's value: shown if all of that is the spec's own."""
        derived = any(at[:end] in self.interpolated for end in range(len(at)))
        is_sure = at in self.places and at not in self.mixed and not derived
        return self._place(at) if is_sure else self.place(at)

    def note_mixed(self) -> None:
        """Find out which values are wholly the spec's own, once all is merged and nothing is resolved yet."""
        if not self.has_others:
            return
        self.interpolated = set(_interpolated(self.data, ()))
        others = (at for at, place in self.places.items() if not place.is_own)
        self.mixed = {at[:end] for at in (*others, *self.interpolated) for end in range(len(at) + 1)}

    def _place(self, at: KeyPath) -> Place:
        return place_in(self.places, at) or Place(self.files[-1] if self.files else "command line")

    def shows(self, at: KeyPath, path: Path) -> bool:
        """Whether it may be told what stands in a file that is named at this key; what the user names, is theirs."""
        return not self.is_said_by_a_file(at) or self.tree is None or self.tree.holds(path)

    def is_said_by_a_file(self, at: KeyPath) -> bool:
        """Whether a key was set by a file, and not by the user."""
        return self.place(at).file in self.folders

    def folder(self, at: KeyPath) -> Path:
        """The folder that a path written at this key is relative to."""
        return self.folders.get(self.place(at).file, Path())

    def is_removable(self, at: KeyPath) -> bool:
        """Whether null takes this key away, and is no value of it."""
        return _is_one_of(at, self.removable)

    def is_resettable(self, at: KeyPath, inherited: Any) -> bool:
        """Whether null takes this key away from the mapping that has it, which then has its default."""
        return isinstance(inherited, dict) and at[-1] in inherited and _is_one_of(at, self.resettable)

    def copy_places(self, source: KeyPath, target: KeyPath) -> None:
        """Have a key stand where another one does, whose value it was given."""
        below = {
            (*target, *at[len(source) :]): place for at, place in self.places.items() if at[: len(source)] == source
        }
        self.places.update(below)
        for keys in (self.interpolated, self.mixed):
            keys.update([(*target, *at[len(source) :]) for at in keys if at[: len(source)] == source])

    def forget_below(self, at: KeyPath) -> None:
        """Drop the places of keys that are no more."""
        self.places = {old: place for old, place in self.places.items() if old[: len(at)] != at}


def _is_one_of(at: KeyPath, keys: frozenset[KeyPath]) -> bool:
    return any(
        len(key) == len(at) and all(part in ("*", name) for part, name in zip(key, at, strict=True)) for key in keys
    )


def _interpolated(value: Any, at: KeyPath) -> Iterator[KeyPath]:
    """The keys of the texts that refer to other keys."""
    if isinstance(value, dict):
        for name, item in value.items():
            yield from _interpolated(item, (*at, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _interpolated(item, (*at, index))
    elif isinstance(value, str) and "${" in value:
        yield at
