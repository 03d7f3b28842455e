"""What a sweep sets in one run, as the board has it: overrides in one line, and read from them again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def shown_point(point: Mapping[str, Any]) -> str:
    """What tells a sweep's points apart: `seed=1 prompts="terse"`."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in point.items())


def point_of(shown: str) -> dict[str, Any]:
    """A point from its line.

    Raises:
        ValueError: it is no such line, as a stranger's need not be.
    """
    point: dict[str, Any] = {}
    decoder, at = json.JSONDecoder(), 0
    while at < len(shown):
        key, is_there, _ = shown[at:].partition("=")
        if not is_there or not key or key in point:
            raise ValueError(f"{shown!r} is not a point of a sweep")
        try:
            point[key], end = decoder.raw_decode(shown, at + len(key) + 1)
        except RecursionError as error:
            raise ValueError("a value has too many levels") from error
        at = end + 1
        if end < len(shown) and shown[end] != " ":
            raise ValueError(f"{shown!r} is not a point of a sweep")
    return point
