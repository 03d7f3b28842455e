"""`--assert`: what is read, what is refused and where, and what an interval comes to."""

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
    ],
)
def test_an_assertion_is_read(text: str, metric: str, sign: str, against_base: bool, number: float) -> None:
    found = parse_assertion(text)
    assert found == Assertion(text, metric, sign, against_base, pytest.approx(number))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "what", "at"),
    [
        ("", "a metric, such as accuracy stands here", 0),
        ("accuracy", "one of >=, >, <= and < stands here", 8),
        ("accuracy == base", "one of >=, >, <= and < stands here", 9),
        ("accuracy + 1", "one of >=, >, <= and < stands here", 9),
        ("accuracy >= bse - 1", "`base` or a number stands here, not 'bse'", 12),
        ("accuracy >= base * 2", "+ or - stands here", 17),
        ("accuracy >= base -", "a number, such as 0.02 or 2% stands here", 18),
        ("accuracy >= 0.5 0.6", "nothing more can stand here", 16),
        ("base >= 0.5", "a metric stands first", 0),
        ("__import__('os')", "one of >=, >, <= and < stands here", 10),
    ],
)
def test_another_form_is_refused_at_its_place(text: str, what: str, at: int) -> None:
    with pytest.raises(UsageError) as refused:
        parse_assertion(text)
    said, shown, caret, form = str(refused.value).splitlines()
    assert what in said
    assert shown == f"  {text}"
    assert caret == f"  {' ' * at}^"
    assert form.startswith("the form is: METRIC >= base - 0.02")


@pytest.mark.parametrize(
    ("sign", "low", "high", "held"),
    [
        (">=", -0.02, 0.1, AssertionResult.HOLDS), (">", -0.02, 0.1, AssertionResult.UNDECIDED),
        (">=", -0.1, 0.1, AssertionResult.UNDECIDED),
        (">=", -0.1, -0.03, AssertionResult.FAILS), ("<=", -0.1, -0.02, AssertionResult.HOLDS),
        ("<", -0.1, -0.02, AssertionResult.UNDECIDED),
        ("<", 0.0, 0.1, AssertionResult.FAILS), (">=", None, None, AssertionResult.UNDECIDED),
    ],
)  # fmt: skip
def test_the_whole_interval_decides(sign: str, low: float | None, high: float | None, held: AssertionResult) -> None:
    assert Assertion("", "accuracy", sign, True, -0.02).judged(low, high) == held
