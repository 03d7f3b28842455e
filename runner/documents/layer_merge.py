"""Files that extend each other, and overrides, into one resolved mapping with the place of every leaf."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.base.errors import NipRunError, Place, Problem
from runner.base.text import did_you_mean, did_you_mean_file
from runner.documents.fetched_files import refused
from runner.documents.interpolation import resolve
from runner.documents.layered_data import FileRead, LayeredData
from runner.documents.overrides import Override, apply_override
from runner.documents.plain_values import KeyPath
from runner.documents.renamed_keys import rename_document
from runner.documents.source_tree import OwnTree
from runner.documents.yaml_reader import Document, from_mapping, read

EXTENDS = "extends"
MAX_EXTENDS = 16
MAX_FILES = 64

Find = Callable[[str, Path], Path | None]
"""Looks a named file up: what is written and the folder of the file that says it, into a path.

Raises `NipRunError` with what is wrong where that is more than that there is none.
"""


def load_layers(
    path: Path,
    shown: str,
    overrides: Sequence[Override],
    find: Find,
    names: Mapping[str, str] | None = None,
    *,
    keys: Collection[str] | None = None,
    removable: Collection[KeyPath] = (),
    resettable: Collection[KeyPath] = (),
    tree: OwnTree | None = None,
    written: Mapping[str, Any] | None = None,
) -> LayeredData:
    """Read a file and all it extends, apply overrides, and resolve interpolations.

    `names` are old dotted keys that still work, each with the new one. `tree` holds the files of which messages may
    show something, by default that of the file itself; another one must have no other keys than `keys`, or nothing of
    it is taken. `removable` are the keys, with `*` for any one name, that null takes away: what a file inherits, or an
    override changes; `resettable` those that it takes away where they are. `written` is what the file at `path` would
    say, where there is none.
    """
    layered = LayeredData(
        tree=tree or OwnTree.of(path), removable=frozenset(removable), resettable=frozenset(resettable)
    )
    files = _Files(find, names or {}, layered, None if keys is None else {*keys, EXTENDS})
    if written is None and (why := refused(path.parent, path)):
        layered.problems.append(Problem(Place(shown), "", why))
    elif written is None:
        files.add(path, shown, ())
    else:
        files.take(from_mapping(written, Document(shown, path.parent)), path, shown, ())
    for override in overrides:
        apply_override(override, layered, names or {})
    resolve(layered)
    return layered


@dataclass(frozen=True)
class _Files:
    """Adds files to what is merged, each after those that it extends."""

    find: Find
    names: Mapping[str, str]
    layered: LayeredData
    keys: Collection[str] | None

    def add(self, path: Path, shown: str, chain: tuple[Path, ...]) -> None:
        assert self.layered.tree is not None
        self.take(read(path, shown, is_own=self.layered.tree.holds(path)), path, shown, chain)

    def take(self, document: Document, path: Path, shown: str, chain: tuple[Path, ...]) -> None:
        """Add what a file says."""
        self._take_whole_or_not(document)
        renamed = rename_document(document, self.names)
        self.layered.files.append(shown)
        self.layered.folders[shown] = document.folder
        self.layered.problems.extend(document.problems)
        self.layered.renamed.extend(renamed)
        bases: dict[str, Path] = {}
        if document.content is not None:
            self.layered.read.append(FileRead(path, document.content, bases))
        if not document.data:
            return
        for at, base in _bases(document, self.layered):
            try:
                found = self.find(base, document.folder)
            except NipRunError as error:
                self._refuse(document, at, str(error))
                continue
            if found is None:
                self._refuse(document, at, _not_found(base, document, self.layered))
            elif not self._is_release(found) and (why := refused(document.folder, found)):
                self._refuse(document, at, f"{base!r}: {why}")
            elif found.resolve() in (*chain, path.resolve()):
                self._refuse(
                    document, at, f"{base!r} extends itself, by way of this file; take one of the two `extends` out"
                )
            elif len(chain) >= MAX_EXTENDS:
                message = f"more than {MAX_EXTENDS} files extend each other; write some of them as one"
                self._refuse(document, at, message)
                return
            elif len(self.layered.files) >= MAX_FILES:
                message = f"more than {MAX_FILES} files are read in all; extend fewer, or write some of them as one"
                self._refuse(document, at, message)
                return
            else:
                bases[base] = found
                self.add(found, _shown(found), (*chain, path.resolve()))
        extends = document.data.pop(EXTENDS, None) is not None
        _merge(document, self.layered, extends=extends)

    def _is_release(self, path: Path) -> bool:
        """Whether a file is an installed release's, which was named by its name and not by a path."""
        return self.layered.tree is not None and self.layered.tree.is_of_release(path)

    def _take_whole_or_not(self, document: Document) -> None:
        """Take nothing of somebody else's file that is no document of ours: other messages would tell of it."""
        if document.is_own:
            return
        for name in document.data:
            if self.keys is not None and name not in {*self.keys, *(old.split(".")[0] for old in self.names)}:
                document.problems.append(Problem(document.place((name,)), name, "unknown key", "unknown key"))
        if document.problems:
            document.data = {}

    def _refuse(self, document: Document, at: KeyPath, message: str) -> None:
        self.layered.problems.append(Problem(document.places[at], EXTENDS, message))


def _not_found(base: str, document: Document, layered: LayeredData) -> str:
    """What to say of a base that is not there; the names of files are told of the spec's own folders alone."""
    folder = document.folder / Path(base).parent
    near = ""
    try:
        if document.is_own and layered.tree is not None and layered.tree.holds(folder):
            near = did_you_mean_file(base, [file.name for file in folder.glob("*.yaml")])
    except (OSError, ValueError):  # no folder of this name can be
        pass
    hint = near or "; a name is relative to the folder of the file that says it"
    return f"no file {base!r} in {str(document.folder)!r}, nor among the built-in ones{hint}"


def _shown(found: Path) -> str:
    """How messages name a base file: relative to the working folder where that is shorter."""
    try:
        return str(found.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(found)


def _bases(document: Document, layered: LayeredData) -> list[tuple[KeyPath, str]]:
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


def _merge(document: Document, layered: LayeredData, *, extends: bool) -> None:
    layered.has_others |= bool(document.data) and not document.is_own
    for at in list(_removed(document.data, (), layered)):
        _remove(at, document, layered, extends=extends)
    replaced = [at for at in document.places if not isinstance(_value_at(document.data, at), dict)]
    for at in replaced:
        layered.forget_below(at)
    layered.data = _merged(layered.data, document.data)
    layered.places.update(document.places)


def _removed(value: Any, at: KeyPath, layered: LayeredData) -> Iterator[KeyPath]:
    """The keys that null takes away."""
    for name, item in value.items() if isinstance(value, dict) else ():
        key = (*at, name)
        if item is None and (layered.is_removable(key) or layered.is_resettable(key, _value_at(layered.data, at))):
            yield key
        else:
            yield from _removed(item, key, layered)


def _remove(at: KeyPath, document: Document, layered: LayeredData, *, extends: bool) -> None:
    """Take away a key that the file inherits, which its own data no longer names either."""
    del _value_at(document.data, at[:-1])[at[-1]]
    inherited = _value_at(layered.data, at[:-1])
    if isinstance(inherited, dict) and at[-1] in inherited:
        del inherited[at[-1]]
        layered.forget_below(at)
        return
    place = document.place(at)
    place = replace(place, is_own=place.is_own and not layered.has_others)  # a hint may name what another file has
    hint = did_you_mean(str(at[-1]), inherited if isinstance(inherited, dict) else ()) or "; leave the line out"
    why = f"it inherits no such key{hint}" if extends else "this file has no `extends`; leave the line out"
    message = f"null takes away what the file inherits, and {why}"
    layered.wrong_nulls.append(Problem(place, ".".join(map(str, at)), message))


def _value_at(data: Any, at: KeyPath) -> Any:
    for part in at:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _merged(below: Any, above: Any) -> Any:
    """Mappings merge key by key; anything else from above replaces what is below."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}
    return copy.deepcopy(above)
