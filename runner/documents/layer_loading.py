"""Merge a file, the files that it extends, and overrides into one resolved mapping with the place of every key.

Specs, protocols and registry components are loaded with it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runner.base.errors import NipRunError
from runner.base.problems import Place, Problem
from runner.base.text import did_you_mean, did_you_mean_file
from runner.documents.fetched_files import path_refusal
from runner.documents.interpolation import resolve_interpolations
from runner.documents.merged_data import ANY_KEYS, KeyRules, LayeredData, ReadFile
from runner.documents.overrides import Override, apply_override
from runner.documents.plain_values import KeyPath, dotted, value_at
from runner.documents.renamed_keys import rename_document
from runner.documents.source_tree import ProjectTree
from runner.documents.yaml_reader import Document, from_mapping, read_yaml

EXTENDS = "extends"
MAX_EXTENDS = 16
MAX_FILES = 64

PathLookup = Callable[[str, Path], Path | None]
"""Finds a file from its name as written and the folder of the file that names it; None if there is no such file.

Raises `NipRunError` for any other problem.
"""


def load_layers(
    source: Path | Mapping[str, object],
    display_name: str,
    overrides: Sequence[Override],
    find: PathLookup,
    rules: KeyRules = ANY_KEYS,
    *,
    tree: ProjectTree | None = None,
) -> LayeredData:
    """Return a file merged with all files that it extends and with overrides, and with its interpolations resolved.

    Args:
        source: The file to read, or its data. Paths in data are relative to the current folder.
        display_name: How messages name the file.
        overrides: Changes that are applied after the files.
        find: Looks up a base file by its name.
        rules: The rules for the keys.
        tree: The files whose contents messages may show; by default the project of the file.
    """
    path = source if isinstance(source, Path) else Path(display_name)
    layered = LayeredData(tree=tree or ProjectTree.of(path), rules=rules)
    merger = _FileMerger(find, layered)
    if not isinstance(source, Path):
        merger.merge_document(from_mapping(source, Document(display_name, path.parent)), path, display_name, ())
    elif problem := path_refusal(path.parent, path):
        layered.problems.append(Problem(Place(display_name), "", problem))
    else:
        merger.merge_file(path, display_name, ())
    for override in overrides:
        apply_override(override, layered)
    resolve_interpolations(layered)
    return layered


@dataclass(frozen=True)
class _FileMerger:
    """Merges files into `layered`. Each file is merged after the files that it extends."""

    find: PathLookup
    layered: LayeredData

    def merge_file(self, path: Path, display_name: str, chain: tuple[Path, ...]) -> None:
        assert self.layered.tree is not None
        document = read_yaml(path, display_name, is_own=self.layered.tree.contains(path))
        self.merge_document(document, path, display_name, chain)

    def merge_document(self, document: Document, path: Path, display_name: str, chain: tuple[Path, ...]) -> None:
        """Merge a document and the files that it extends."""
        self._ignore_foreign_if_invalid(document)
        renamed = rename_document(document, self.layered.rules.renamed)
        self.layered.files.append(display_name)
        self.layered.folders[display_name] = document.folder
        self.layered.problems.extend(document.problems)
        self.layered.renamed_keys.extend(renamed)
        bases: dict[str, Path] = {}
        if document.content is not None:
            self.layered.read_files.append(ReadFile(path, document.content, bases))
        if not document.data:
            return
        for key_path, base in _base_names(document, self.layered):
            try:
                base_path = self.find(base, document.folder)
            except NipRunError as error:
                self._refuse(document, key_path, str(error))
                continue
            if base_path is None:
                self._refuse(document, key_path, _not_found_message(base, document, self.layered))
            elif not self._is_in_release(base_path) and (reason := path_refusal(document.folder, base_path)):
                self._refuse(document, key_path, f"{base!r}: {reason}")
            elif base_path.resolve() in (*chain, path.resolve()):
                message = f"{base!r} extends itself through this file; remove one of the `extends`"
                self._refuse(document, key_path, message)
            elif len(chain) >= MAX_EXTENDS:
                message = f"a chain of more than {MAX_EXTENDS} files that extend each other; merge some of them"
                self._refuse(document, key_path, message)
                return
            elif len(self.layered.files) >= MAX_FILES:
                message = f"more than {MAX_FILES} files in all; extend fewer, or merge some of them"
                self._refuse(document, key_path, message)
                return
            else:
                bases[base] = base_path
                self.merge_file(base_path, _display_path(base_path), (*chain, path.resolve()))
        extends = document.data.pop(EXTENDS, None) is not None
        _merge(document, self.layered, extends=extends)

    def _is_in_release(self, path: Path) -> bool:
        """Return whether a file belongs to an installed release that the spec names by its reference."""
        return self.layered.tree is not None and self.layered.tree.is_in_release(path)

    def _ignore_foreign_if_invalid(self, document: Document) -> None:
        """Ignore a file outside the project if it is invalid, because messages about it could reveal its text."""
        if document.is_own:
            return
        rules = self.layered.rules
        if rules.valid is not None:
            valid_names = {*rules.valid, EXTENDS, *(old.partition(".")[0] for old in rules.renamed)}
            unknown = [name for name in document.data if name not in valid_names]
            document.problems.extend(
                Problem(document.place((name,)), name, "unknown key", "unknown key") for name in unknown
            )
        if document.problems:
            document.data = {}

    def _refuse(self, document: Document, key_path: KeyPath, message: str) -> None:
        self.layered.problems.append(Problem(document.places[key_path], EXTENDS, message))


def _not_found_message(base: str, document: Document, layered: LayeredData) -> str:
    """Return the message about a missing base file. It suggests only names of files in the project."""
    folder = document.folder / Path(base).parent
    suggestion = ""
    try:
        if document.is_own and layered.tree is not None and layered.tree.contains(folder):
            suggestion = did_you_mean_file(base, [file.name for file in folder.glob("*.yaml")])
    except (OSError, ValueError):  # an impossible folder name
        pass
    hint = suggestion or "; a name is relative to the folder of the file that names it"
    return f"no file {base!r} in {str(document.folder)!r} or among the built-in files{hint}"


def _display_path(path: Path) -> str:
    """Return the path of a base file for messages: relative to the current folder, or absolute if it is outside."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)


def _base_names(document: Document, layered: LayeredData) -> list[tuple[KeyPath, str]]:
    """Return the key and name of each file that a document extends; an invalid `extends` becomes a problem."""
    value = document.data.get(EXTENDS)
    if value is None:
        return []
    if isinstance(value, str):
        return [((EXTENDS,), value)]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [((EXTENDS, index), item) for index, item in enumerate(value)]
    problem = Problem(document.places[(EXTENDS,)], EXTENDS, "expected a file name or a list of file names")
    layered.problems.append(problem)
    return []


def _merge(document: Document, layered: LayeredData, *, extends: bool) -> None:
    layered.has_foreign_data |= bool(document.data) and not document.is_own
    for key_path in list(_deleted_keys(document.data, (), layered)):
        _delete(key_path, document, layered, extends=extends)
    replaced = [key_path for key_path in document.places if not isinstance(value_at(document.data, key_path), dict)]
    for key_path in replaced:
        layered.drop_places(key_path)
    layered.data = _merge_values(layered.data, document.data)
    layered.places.update(document.places)


def _deleted_keys(value: Any, key_path: KeyPath, layered: LayeredData) -> Iterator[KeyPath]:
    """Yield the keys whose value is a null that deletes an inherited value."""
    for name, item in value.items() if isinstance(value, dict) else ():
        key = (*key_path, name)
        if item is None and (layered.is_removable(key) or layered.is_resettable(key, value_at(layered.data, key_path))):
            yield key
        else:
            yield from _deleted_keys(item, key, layered)


def _delete(key_path: KeyPath, document: Document, layered: LayeredData, *, extends: bool) -> None:
    """Delete a key whose value is null from the document and from the data that the document inherits."""
    del value_at(document.data, key_path[:-1])[key_path[-1]]
    inherited = value_at(layered.data, key_path[:-1])
    if isinstance(inherited, dict) and key_path[-1] in inherited:
        del inherited[key_path[-1]]
        layered.drop_places(key_path)
        return
    place = document.place(key_path)
    place = replace(place, is_own=place.is_own and not layered.has_foreign_data)  # a hint may name keys of another file
    hint = did_you_mean(str(key_path[-1]), inherited if isinstance(inherited, dict) else ()) or "; leave the line out"
    reason = f"this file inherits no such key{hint}" if extends else "this file has no `extends`; leave the line out"
    message = f"null deletes an inherited key, and {reason}"
    layered.wrong_nulls.append(Problem(place, dotted(key_path), message))


def _merge_values(old: Any, new: Any) -> Any:
    """Return `old` with the values of `new`: mappings are merged key by key, and other values are replaced."""
    if isinstance(old, dict) and isinstance(new, dict):
        return {**old, **{name: _merge_values(old.get(name), value) for name, value in new.items()}}
    return copy.deepcopy(new)
