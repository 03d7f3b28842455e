"""Convert Python values from a notebook (NumPy scalars, paths, tuples, enums) to the types that YAML has."""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import date
from typing import Any

KeyPath = tuple[str | int, ...]
"""The path of a key from the root: names in mappings, indices in lists."""

MAX_DEPTH = 24


def dotted(key_path: KeyPath) -> str:
    """Return a key path as messages write it: `agents.judge.model`."""
    return ".".join(map(str, key_path))


def value_at(data: Any, key_path: KeyPath) -> Any:
    """Return the value of a key in nested mappings, or None if it is missing."""
    for part in key_path:
        data = data.get(part) if isinstance(data, dict) else None
    return data


def to_plain_values(
    value: Any, refused: list[tuple[KeyPath, str]], key_path: KeyPath = (), above: tuple[Any, ...] = ()
) -> Any:
    """Return a value as YAML types. Parts that YAML cannot represent are omitted, and reported in `refused`."""
    if any(value is ancestor for ancestor in above):
        return _refuse(refused, key_path, "the value contains itself; replace the inner one by a copy")
    if len(key_path) > MAX_DEPTH:
        return _refuse(refused, key_path[:-1], f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, Mapping):
        return _convert_mapping(value, refused, key_path, (*above, value))
    if isinstance(value, (list, tuple)):
        return [to_plain_values(item, refused, (*key_path, index), (*above, value)) for index, item in enumerate(value)]
    scalar = _convert_scalar(value)
    if scalar is None and value is not None:
        return _refuse(refused, key_path, f"expected a text, number, list or mapping, not {_type_name(value)}")
    return scalar


def _convert_mapping(
    value: Mapping[Any, Any], refused: list[tuple[KeyPath, str]], key_path: KeyPath, above: tuple[Any, ...]
) -> Any:
    converted = {}
    for name, item in value.items():
        refused_before = len(refused)
        converted_item = to_plain_values(item, refused, (*key_path, str(name)), above)
        if converted_item is not None or len(refused) == refused_before:
            converted[_convert_key(name, refused, key_path)] = converted_item
    return converted


def _convert_scalar(value: Any) -> Any:
    """Return a scalar as its built-in type (an enum member as its value), or None if it is not a scalar."""
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


def _convert_key(name: Any, refused: list[tuple[KeyPath, str]], key_path: KeyPath) -> Any:
    """Return a key of a mapping. Numbers and booleans stay as they are, because the YAML reader handles them."""
    if isinstance(name, str):
        return str.__str__(name)
    if name is not None and not isinstance(name, (bool, int, float)):
        _refuse(refused, key_path, f"a key must be text, not {_type_name(name)}")
        return str(name)
    return name


def _refuse(refused: list[tuple[KeyPath, str]], key_path: KeyPath, message: str) -> None:
    refused.append((key_path, message))


def _type_name(value: Any) -> str:
    kind = type(value)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
