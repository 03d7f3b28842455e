"""Sweep points formatted as a line and parsed again."""

from __future__ import annotations

from typing import Any

import pytest

from runner.results.sweep_points import format_point, parse_point


@pytest.mark.parametrize(
    "point",
    [
        {},
        {"seed": 1},
        {"agents.prover.max_response_words": 40, "seed": 2},
        {"prompts": 'a "b" = c d', "x": None, "y": [1, {"z": "="}], "last": True},
    ],
)
def test_formatted_point_is_parsed_unchanged(point: dict[str, Any]) -> None:
    assert parse_point(format_point(point)) == point


@pytest.mark.parametrize("line", ["seed", "seed=", "seed=1,b=2", "=1", "a=1 a=2", 'a="', "a=1 b", "a=" + "[" * 100_000])
def test_invalid_point_line_is_refused(line: str) -> None:
    with pytest.raises(ValueError):
        parse_point(line)
