"""JSON of which there is one reading, and the equality of its values with their types."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import orjson

from runner.base.text import comma_join


def loads(data: bytes) -> Any:
    """A JSON value that every reader reads alike.

    Raises:
        ValueError: it is none, nests too deep, or has a key twice in one object.
    """
    orjson.loads(data)  # which takes UTF-8 alone, and finite numbers
    try:
        return json.loads(data, object_pairs_hook=_once)
    except RecursionError:
        raise ValueError("it nests too deep") from None


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it names {comma_join(sorted({name for name in names if names.count(name) > 1}))} twice")
    return found


def is_same(recorded: Any, expected: Any) -> bool:
    """Whether a value is the expected one, with its type: true is not 1, and a whole number is written as one.

    Where a fraction may stand, 1 may be written for 1.0.
    """
    if isinstance(expected, bool) or isinstance(recorded, bool):
        return recorded is expected
    if isinstance(expected, float):
        return isinstance(recorded, (int, float)) and recorded == expected
    if isinstance(expected, Mapping):
        return (
            isinstance(recorded, Mapping)
            and recorded.keys() == expected.keys()
            and all(is_same(recorded[name], value) for name, value in expected.items())
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(recorded, (list, tuple))
            and len(recorded) == len(expected)
            and all(map(is_same, recorded, expected))
        )
    return not isinstance(recorded, float) and bool(recorded == expected)
