"""Compare what a program printed or returned with what was expected."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 1e-5, 1e-8
"""The tolerance for numbers with a decimal point or an exponent, as in the APPS benchmark."""

_INTEGER = re.compile(r"(?P<sign>[+-]?)0*(?P<digits>\d+)", re.ASCII)


class ComparisonRule(StrEnum):
    """The rules for outputs. They are tried in this order."""

    EXACT = "exact"
    STRIPPED = "stripped"
    LINES = "lines"
    NUMBERS = "numbers"


def match_output(output: str, expected: str) -> ComparisonRule | None:
    """Return the first rule that accepts an output; None if it is wrong.

    An output is right if it is equal; if it is equal without white space at its ends; if its lines are, without white
    space at their ends and without empty lines; or if all its tokens are the same numbers. Integers must be equal.
    """
    if output == expected:
        return ComparisonRule.EXACT
    if output.strip() == expected.strip():
        return ComparisonRule.STRIPPED
    lines, expected_lines = _nonempty_lines(output), _nonempty_lines(expected)
    if lines == expected_lines:
        return ComparisonRule.LINES
    tokens = [line.split() for line in lines]
    expected_tokens = [line.split() for line in expected_lines]
    if list(map(len, tokens)) == list(map(len, expected_tokens)) and all(
        _is_same_number(token, expected_token)
        for row, expected_row in zip(tokens, expected_tokens, strict=True)
        for token, expected_token in zip(row, expected_row, strict=True)
    ):
        return ComparisonRule.NUMBERS
    return None


def _nonempty_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _is_same_number(token: str, expected: str) -> bool:
    integer, expected_integer = _INTEGER.fullmatch(token), _INTEGER.fullmatch(expected)
    if integer and expected_integer:  # as texts, since Python refuses to convert thousands of digits
        is_negative, should_be = integer["sign"] == "-", expected_integer["sign"] == "-"
        return integer["digits"] == expected_integer["digits"] and (
            is_negative == should_be or integer["digits"] == "0"
        )
    try:
        number, expected_number = float(token), float(expected)
    except ValueError:
        return False
    if expected_integer:
        return number == expected_number and math.isfinite(number)
    return is_close(number, expected_number)


def is_close(number: float, expected: float) -> bool:
    """Return whether a number is right up to the tolerance. NaN equals NaN."""
    if math.isnan(expected):
        return math.isnan(number)
    return math.isclose(number, expected, rel_tol=RELATIVE_TOLERANCE, abs_tol=ABSOLUTE_TOLERANCE)


def is_equal(value: object, expected: object) -> bool:
    """Return whether a returned value equals the expected one, as in `assert value == expected`."""
    try:
        return bool(value == expected)
    except RecursionError:
        return False


def is_equal_in_json(value: Any, expected: Any) -> bool:
    """Return whether a returned value equals an expected value that was stored as JSON, as in the APPS benchmark.

    JSON has no tuples, no sets and only texts as keys. Numbers with a fraction have a tolerance. APPS wraps some
    expected values in a list of one.
    """
    if _is_alike(value, expected):
        return True
    return isinstance(expected, list) and len(expected) == 1 and _is_alike(value, expected[0])


def _is_alike(value: Any, expected: Any) -> bool:
    if isinstance(value, (list, tuple)) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_is_alike, value, expected))
    if isinstance(value, (set, frozenset)) and isinstance(expected, list):
        return _is_same_collection(value, expected)
    if isinstance(value, dict) and isinstance(expected, dict):
        texts = {str(key): item for key, item in value.items()}
        return texts.keys() == expected.keys() and all(_is_alike(texts[key], expected[key]) for key in texts)
    if isinstance(expected, float) and isinstance(value, (int, float)):
        return is_close(value, expected)
    return is_equal(value, expected)


def _is_same_collection(value: set[Any] | frozenset[Any], expected: Sequence[Any]) -> bool:
    return len(value) == len(expected) and all(
        any(_is_alike(item, candidate) for candidate in expected) for item in value
    )
