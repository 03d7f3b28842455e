"""Format and parse the values that a sweep sets in one run: a line of overrides on the board."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def format_point(point: Mapping[str, Any]) -> str:
    """Return a sweep's settings in one line: `seed=1 prompts="terse"`."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in point.items())


def parse_point(line: str) -> dict[str, Any]:
    """Parse a point from its line.

    Raises:
        ValueError: the line is invalid, which is possible on somebody else's board.
    """
    point: dict[str, Any] = {}
    decoder, position = json.JSONDecoder(), 0
    while position < len(line):
        key, is_there, _ = line[position:].partition("=")
        if not is_there or not key or key in point:
            raise ValueError(f"{line!r} is not a point of a sweep")
        try:
            point[key], end = decoder.raw_decode(line, position + len(key) + 1)
        except RecursionError as error:
            raise ValueError("a value is nested too deeply") from error
        position = end + 1
        if end < len(line) and line[end] != " ":
            raise ValueError(f"{line!r} is not a point of a sweep")
    return point
