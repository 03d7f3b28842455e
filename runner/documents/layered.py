"""What merging files and overrides gives: data, with the place of every leaf."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runner.documents.own_tree import OwnTree
from runner.documents.reader import KeyPath, place_in
from runner.errors import Place, Problem


@dataclass(frozen=True)
class RenamedKey:
    """A key that was written by an old name, which still works: where, and both names."""

    place: Place
    old: str
    new: str

    def __str__(self) -> str:
        return f"{self.place}: {self.old!r} is now {self.new!r}"


@dataclass
class Layered:
    """The result of merging: data, where each leaf was set, the folder its paths are relative to."""

    data: dict[str, Any] = field(default_factory=dict)
    places: dict[KeyPath, Place] = field(default_factory=dict)
    folders: dict[str, Path] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    renamed: list[RenamedKey] = field(default_factory=list)
    tree: OwnTree | None = None
    """The files of which it may be told what stands in them; None: all."""

    def place(self, at: KeyPath) -> Place:
        """Where a key was set; for one that was not, where the nearest mapping above it was."""
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

    def forget_below(self, at: KeyPath) -> None:
        """Drop the places of keys that are no more."""
        self.places = {old: place for old, place in self.places.items() if old[: len(at)] != at}
