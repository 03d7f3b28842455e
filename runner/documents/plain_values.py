"""Values of a notebook as those of a YAML file: NumPy's scalars, paths and tuples as what they hold."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from typing import Any

KeyPath = tuple[str | int, ...]
"""A key's way from the root: names in mappings, numbers in lists."""

MAX_DEPTH = 24


def plain(value: Any, refused: list[tuple[KeyPath, str]], at: KeyPath = (), above: tuple[Any, ...] = ()) -> Any:
    """A value as YAML has it; what has no such form goes to `refused`, by key and message, and is left out."""
    if any(value is one for one in above):
        return _refuse(refused, at, "it holds itself; write the value out")
    if len(at) > MAX_DEPTH:
        return _refuse(refused, at[:-1], f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return _mapping(value, refused, at, (*above, value))
    if isinstance(value, (list, tuple)):
        return [plain(item, refused, (*at, index), (*above, value)) for index, item in enumerate(value)]
    found = _scalar(value)
    if found is None and value is not None:
        return _refuse(refused, at, f"a text, number, list or mapping belongs here, not {_kind(value)}")
    return found


def _mapping(value: Mapping[Any, Any], refused: list[tuple[KeyPath, str]], at: KeyPath, above: tuple[Any, ...]) -> Any:
    taken = {}
    for name, item in value.items():
        before = len(refused)
        found = plain(item, refused, (*at, str(name)), above)
        if found is not None or len(refused) == before:
            taken[_name(name, refused, at)] = found
    return taken


def _scalar(value: Any) -> Any:
    """None of what is no scalar; subclasses, such as those of an enumeration, are what they hold."""
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, bool):
        return value
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, str):
        return str.__str__(value)
    return str(value) if isinstance(value, date) else None


def _name(name: Any, refused: list[tuple[KeyPath, str]], at: KeyPath) -> Any:
    """A key; numbers and truth values stay, for the reader knows where they stand for words."""
    if isinstance(name, str):
        return str.__str__(name)
    if name is not None and not isinstance(name, (bool, int, float)):
        _refuse(refused, at, f"a key must be text, not {_kind(name)}")
        return str(name)
    return name


def _refuse(refused: list[tuple[KeyPath, str]], at: KeyPath, message: str) -> None:
    refused.append((at, message))


def _kind(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
