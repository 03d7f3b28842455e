"""Files that extend each other, and overrides, into one resolved mapping with the place of every leaf."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from runner.documents.interpolation import resolve
from runner.documents.layered import Layered
from runner.documents.overrides import Override, apply_override
from runner.documents.reader import Document, KeyPath, read
from runner.errors import Problem

EXTENDS = "extends"
MAX_EXTENDS = 16
MAX_FILES = 64

Find = Callable[[str, Path], Path | None]
"""Looks a named file up: what is written and the folder of the file that says it, into a path."""


def load_layers(path: Path, shown: str, overrides: Sequence[Override], find: Find) -> Layered:
    """Read a file and all it extends, apply overrides, and resolve interpolations."""
    layered = Layered()
    _add_file(path, shown, find, layered, ())
    for override in overrides:
        apply_override(override, layered)
    resolve(layered)
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
        layered.forget_below(at)
    layered.data = _merged(layered.data, document.data)
    layered.places.update(document.places)


def _value_at(data: Any, at: KeyPath) -> Any:
    for part in at:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def _merged(below: Any, above: Any) -> Any:
    """Mappings merge key by key; anything else from above replaces what is below."""
    if isinstance(below, dict) and isinstance(above, dict):
        return {**below, **{name: _merged(below.get(name), value) for name, value in above.items()}}
    return copy.deepcopy(above)
