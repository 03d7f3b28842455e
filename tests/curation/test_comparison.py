"""Outputs are compared exactly, then stripped, then by line, then as numbers. Values are compared as in JSON."""

from __future__ import annotations

import time

import pytest

from runner.curation.program_tester import ComparisonRule, is_equal_in_json, match_output


@pytest.mark.parametrize(
    ("output", "expected", "rule"),
    [
        ("4\n", "4\n", ComparisonRule.EXACT),
        ("4\n", "4", ComparisonRule.STRIPPED),
        ("1 \n\n 2\n", "1\n2", ComparisonRule.LINES),
        ("1   2\n", "1 2\n", ComparisonRule.NUMBERS),
        ("0.333333", "0.3333333333", ComparisonRule.NUMBERS),
        ("3.0", "3", ComparisonRule.NUMBERS),
        ("007", "7", ComparisonRule.NUMBERS),
        ("nan", "nan", ComparisonRule.EXACT),
        ("NAN", "nan", ComparisonRule.NUMBERS),
        ("", "", ComparisonRule.EXACT),
        ("1000000008", "1000000007", None),
        ("3.00001", "3", None),
        ("0.34", "0.33", None),
        ("1\n2", "1 2", None),
        ("1 2", "1 2 3", None),
        ("yes", "YES", None),
        ("", "0", None),
        ("inf", "1e308", None),
        ("inf", "9" * 5000, None),
        ("-0", "0", ComparisonRule.NUMBERS),
        ("-1", "1", None),
    ],
)
def test_first_matching_comparison_rule_is_returned(output: str, expected: str, rule: ComparisonRule | None) -> None:
    assert match_output(output, expected) == rule


def test_a_very_long_integer_is_compared_without_an_error() -> None:
    assert match_output("9" * 5000, "9" * 5000 + " ") is not None
    assert match_output("9" * 5000 + " 1", "9" * 4999 + "8 1") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [((1, 2), [1, 2]), ({2, 1}, [1, 2]), ({1: "a"}, {"1": "a"}), (0.1 + 0.2, 0.3), (5, [5]), ([(1,)], [[1]])],
)
def test_value_equals_its_json_form(value: object, expected: object) -> None:
    assert is_equal_in_json(value, expected)


@pytest.mark.parametrize(
    ("value", "expected"), [((1, 2), [2, 1]), ({1: "a"}, {"2": "a"}), (1, 2), ("1", 1), (None, False), (2.5, 2)]
)
def test_different_values_are_not_equal_in_json(value: object, expected: object) -> None:
    assert not is_equal_in_json(value, expected)


@pytest.mark.parametrize(("value", "expected"), [(10**400, 1.5), ([10**400], [1.5]), ({10**5000: 1}, {"1": 1})])
def test_a_very_large_integer_is_not_equal_in_json_and_no_error(value: object, expected: object) -> None:
    assert not is_equal_in_json(value, expected)


def test_a_large_set_is_compared_in_seconds() -> None:
    started = time.process_time()
    assert is_equal_in_json(set(range(20_000)), list(range(20_000)))
    assert not is_equal_in_json({*range(1, 20_000), -1}, list(range(20_000)))
    assert time.process_time() - started < 5
