"""`--assert`: parsing, syntax errors with their position, and the result for an interval."""

from __future__ import annotations

import pytest

from runner.base.errors import UsageError
from runner.results.comparison.assertions import Assertion, AssertionResult, parse_assertion


@pytest.mark.parametrize(
    ("text", "metric", "sign", "against_base", "number"),
    [
        ("accuracy >= base - 0.02", "accuracy", ">=", True, -0.02),
        ("accuracy>=base-2%", "accuracy", ">=", True, -0.02),
        ("prover.reward < base + 1e-1", "prover.reward", "<", True, 0.1),
        ("accuracy > base", "accuracy", ">", True, 0.0),
        ("soundness_error <= .3", "soundness_error", "<=", False, 0.3),
        ("prover.reward > -0.5", "prover.reward", ">", False, -0.5),
        ("accuracy >= base - 2 %", "accuracy", ">=", True, -0.02),
        ("soundness_error <= .5 %", "soundness_error", "<=", False, 0.005),
    ],
)
def test_assertion_is_parsed(text: str, metric: str, sign: str, against_base: bool, number: float) -> None:
    assertion = parse_assertion(text)
    assert assertion == Assertion(text, metric, sign, against_base, pytest.approx(number))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected_message", "column"),
    [
        ("", "expected a metric, such as accuracy", 0),
        ("accuracy", "expected one of >=, >, <= and <", 8),
        ("accuracy == base", "expected one of >=, >, <= and <", 9),
        ("accuracy + 1", "expected one of >=, >, <= and <", 9),
        ("accuracy >= bse - 1", "expected `base` or a number, not 'bse'", 12),
        ("accuracy >= base * 2", "expected + or -", 17),
        ("accuracy >= base -", "expected a number, such as 0.02 or 2%", 18),
        ("accuracy >= 0.5 0.6", "expected the end of the assertion", 16),
        ("accuracy >= 5 % %", "expected the end of the assertion", 16),
        ("base >= 0.5", "expected a metric; `base` belongs after the sign", 0),
        ("__import__('os')", "expected one of >=, >, <= and <", 10),
    ],
)
def test_syntax_error_points_to_its_position(text: str, expected_message: str, column: int) -> None:
    with pytest.raises(UsageError) as refused:
        parse_assertion(text)
    message, quoted_text, caret, syntax = str(refused.value).splitlines()
    assert expected_message in message
    assert quoted_text == f"  {text}"
    assert caret == f"  {' ' * column}^"
    assert syntax.startswith("syntax: METRIC >= base - 0.02")


@pytest.mark.parametrize(
    ("sign", "low", "high", "result"),
    [
        (">=", -0.02, 0.1, AssertionResult.HOLDS), (">", -0.02, 0.1, AssertionResult.UNDECIDED),
        (">=", -0.1, 0.1, AssertionResult.UNDECIDED),
        (">=", -0.1, -0.03, AssertionResult.FAILS), ("<=", -0.1, -0.02, AssertionResult.HOLDS),
        ("<", -0.1, -0.02, AssertionResult.UNDECIDED),
        ("<", 0.0, 0.1, AssertionResult.FAILS), (">=", None, None, AssertionResult.UNDECIDED),
    ],
)  # fmt: skip
def test_the_whole_interval_decides(sign: str, low: float | None, high: float | None, result: AssertionResult) -> None:
    assert Assertion("", "accuracy", sign, True, -0.02).judge(low, high) == result
