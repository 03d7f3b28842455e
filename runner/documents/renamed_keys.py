"""Replace old key names by new ones, so that files from older versions still load."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from runner.base.problems import Problem
from runner.documents.interpolation import REFERENCE, referenced_key
from runner.documents.merged_data import RenamedKey
from runner.documents.plain_values import KeyPath, dotted
from runner.documents.yaml_reader import Document

SWEEP = "sweep"
"""The section whose keys are dotted keys of the spec, also in its `ZIP` and in each of its points."""

ZIP = "zip"


@dataclass(frozen=True)
class _OldKey:
    """A key with an old name in a document."""

    section: dict[str, Any]
    """The mapping that has the key."""
    key_path: KeyPath
    """The path of the key."""
    new_name: str
    """The new name of the key in its mapping."""


def rename_document(document: Document, names: Mapping[str, str]) -> list[RenamedKey]:
    """Rename old keys in a document, and references to them; return the renamed keys with their places.

    A document that has both names of a key gets a problem.
    """
    renames: list[RenamedKey] = []
    for old, new in names.items():
        for key in list(_old_keys(document.data, old, new)):
            place = document.place(key.key_path)
            if key.new_name in key.section:
                message = f"{old} is the old name of {new}, which is also set; remove one of the two"
                document.problems.append(Problem(place, dotted(key.key_path), message))
            else:
                _rename(key)
                _move_places(document, key.key_path, (*key.key_path[:-1], key.new_name))
                renames.append(RenamedKey(place, old, new))
    document.data = {
        name: _rename_within(item, (name,), document, names, renames) for name, item in document.data.items()
    }
    return renames


def _old_keys(data: dict[str, Any], old: str, new: str) -> Iterator[_OldKey]:
    """Yield each use of an old key: in its section, and in the sweep."""
    *section, last = old.split(".")
    yield from _old_key(data, tuple(section), last, new.rpartition(".")[2])
    yield from _old_key(data, (SWEEP,), old, new)
    yield from _old_key(data, (SWEEP, ZIP), old, new)
    points = data.get(SWEEP)
    for index in range(len(points) if isinstance(points, list) else 0):
        yield from _old_key(data, (SWEEP, index), old, new)


def _old_key(data: Any, section: KeyPath, name: str, new: str) -> Iterator[_OldKey]:
    mapping = data
    for part in section:
        if isinstance(mapping, list) and isinstance(part, int):
            mapping = mapping[part]
        else:
            mapping = mapping.get(part) if isinstance(mapping, dict) else None
    if isinstance(mapping, dict) and name in mapping:
        yield _OldKey(mapping, (*section, name), new)


def _rename(key: _OldKey) -> None:
    """Rename a key without changing the order of the keys."""
    items = [(key.new_name if name == key.key_path[-1] else name, value) for name, value in key.section.items()]
    key.section.clear()
    key.section.update(items)


def _move_places(document: Document, old: KeyPath, new: KeyPath) -> None:
    document.places = {
        (*new, *key[len(old) :]) if key[: len(old)] == old else key: place for key, place in document.places.items()
    }


def _rename_within(
    value: Any, key_path: KeyPath, document: Document, names: Mapping[str, str], renames: list[RenamedKey]
) -> Any:
    """Return the value with every `${old}` in it replaced by `${new}`."""

    def new_reference(reference: re.Match[str]) -> str:
        key = dotted(referenced_key(reference[1], key_path))
        if key not in names:
            return reference[0]
        renames.append(RenamedKey(document.place(key_path), key, names[key]))
        return f"${{{names[key]}}}"

    if isinstance(value, dict):
        return {name: _rename_within(item, (*key_path, name), document, names, renames) for name, item in value.items()}
    if isinstance(value, list):
        return [_rename_within(item, (*key_path, index), document, names, renames) for index, item in enumerate(value)]
    return REFERENCE.sub(new_reference, value) if isinstance(value, str) else value
