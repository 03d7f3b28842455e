"""Format and parse a point of a sweep: the settings of one run, as a line of overrides on the leaderboard."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def format_point(point: Mapping[str, object]) -> str:
    """Return the settings of a point in one line: `seed=1 prompts="terse"`."""
    return " ".join(f"{key}={json.dumps(value)}" for key, value in point.items())


def parse_point(line: str) -> dict[str, object]:
    """Parse a line that `format_point` returned.

    Raises:
        ValueError: the line is invalid, which is possible if somebody else wrote the leaderboard.
    """
    point: dict[str, Any] = {}
    decoder, position = json.JSONDecoder(), 0
    while position < len(line):
        key, equals_sign, _ = line[position:].partition("=")
        if not equals_sign or not key or key in point:
            raise ValueError(f"{line!r} is not a point of a sweep")
        try:
            point[key], end = decoder.raw_decode(line, position + len(key) + 1)
        except RecursionError as error:
            raise ValueError("a value is nested too deeply") from error
        position = end + 1
        if end < len(line) and line[end] != " ":
            raise ValueError(f"{line!r} is not a point of a sweep")
    return point
