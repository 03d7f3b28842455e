"""Parse JSON that can be interpreted in only one way, and compare values of JSON including their types."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

import orjson

from runner.base.text import comma_join

ROUNDING = 1e-9
"""The largest relative difference between two floats that is due to rounding; a thousandth of it near zero."""


def parse_strict_json(data: bytes) -> Any:
    """Parse JSON. Text that different readers could interpret differently is refused.

    Raises:
        ValueError: the JSON is invalid, nested too deeply, or has a duplicate key in an object.
    """
    orjson.loads(data)  # accepts only UTF-8 and finite numbers
    try:
        return json.loads(data, object_pairs_hook=_reject_duplicates)
    except RecursionError:
        raise ValueError("its JSON is nested too deeply") from None


def _reject_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, object]:
    mapping = dict(pairs)
    if len(mapping) < len(pairs):
        names = [name for name, _ in pairs]
        duplicates = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"its JSON has duplicate keys: {comma_join(duplicates)}")
    return mapping


def is_same(recorded: Any, expected: Any) -> bool:
    """Return whether a value equals the expected one, including its type: true is not 1, and 2.0 is not 2.

    If the expected value is a float, an integer may stand for it: 1 for 1.0. Floats may differ by rounding, since other
    processors and other releases of SciPy round the last digits differently.
    """
    if isinstance(expected, bool) or isinstance(recorded, bool):
        return recorded is expected
    if isinstance(expected, float):
        if isinstance(recorded, float):
            return math.isclose(recorded, expected, rel_tol=ROUNDING, abs_tol=ROUNDING / 1000)
        return isinstance(recorded, int) and recorded == expected
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
