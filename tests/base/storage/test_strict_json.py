"""Recorded values are compared with recomputed ones."""

from __future__ import annotations

import math

import pytest

from runner.base.storage.strict_json import is_same


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (0.36813309259403815, 0.36813309259208027), (0.1 + 0.2, 0.3), (5e-17, 0.0), (-0.5, -0.5000000000001),
        ([{"low": 0.30000000000000004}], [{"low": 0.3}]), (1, 1.0), (7, 7), ("a", "a"), (None, None),
    ],
)  # fmt: skip
def test_floats_that_differ_by_rounding_are_the_same(recorded: object, expected: object) -> None:
    assert is_same(recorded, expected)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        (0.3681331, 0.3681330), (1e-10, 0.0), (0.5, -0.5), (math.nan, 0.5), (math.inf, 0.5), (10**400, 1.0),
        (2.0, 2), (True, 1), (1, True), (1, 1.0000000000001), ("0.5", 0.5), ([0.5], [0.5, 0.5]),
    ],
)  # fmt: skip
def test_other_values_and_types_differ(recorded: object, expected: object) -> None:
    assert not is_same(recorded, expected)
