"""Assertions about a system, such as `accuracy >= base - 0.02`: parse and judge them without executing code.

    assertion:  METRIC  >= | > | <= | <  bound
    bound:      NUMBER  |  base  |  base + NUMBER  |  base - NUMBER

A number is a decimal, or a percentage: `2%` and `2 %` are 0.02. An assertion holds if the whole 95 % interval
satisfies it. It fails if no part of the interval does; otherwise it cannot be decided.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.results.metric_definitions import Metric

_ANALYSIS = r"analysis:[\w.@-]+(?:=(?:\"[^\"]+\"|[\w.-]+)(?:@[0-9a-f]+)?)?"
"""Matches a metric of an analysis, such as `analysis:role_conformance=yes@0a1b2c3d4e`; an answer may have quotes."""
_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?(?:\s*%)?|\.\d+(?:\s*%)?)"
    rf"|(?P<word>{_ANALYSIS}|[A-Za-z_]\w*(?:\.\w+)*)|(?P<sign>>=|<=|[<>+-]))"
)
_SYNTAX = "METRIC >= base - 0.02, or METRIC >= 0.8; the signs are >=, >, <= and <"
_BASE = "base"


class AssertionResult(StrEnum):
    """The result of an assertion."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "cannot be decided"


def exit_code(results: Iterable[AssertionResult]) -> ExitCode:
    """Return the exit code of a command that judged assertions."""
    results = set(results)
    if AssertionResult.FAILS in results:
        return ExitCode.FAILED
    return ExitCode.UNDECIDED if AssertionResult.UNDECIDED in results else ExitCode.DONE


@dataclass(frozen=True)
class Assertion:
    """An assertion that a metric of a system, or its difference from the base, is on one side of a number."""

    text: str
    metric: str
    sign: str
    """A key of `_COMPARE`."""
    against_base: bool
    """Whether `number` limits the difference from the base."""
    number: float

    def judge(self, low: float | None, high: float | None) -> AssertionResult:
        """Judge by the 95 % interval of the metric, or of its difference from the base's."""
        if low is None or high is None:
            return AssertionResult.UNDECIDED
        low_holds, high_holds = (_COMPARE[self.sign](end, self.number) for end in (low, high))
        if low_holds != high_holds:
            return AssertionResult.UNDECIDED
        return AssertionResult.HOLDS if low_holds else AssertionResult.FAILS


def check_bound(assertion: Assertion, measure: Metric) -> None:
    """Check that the number of an assertion about a share is possible.

    Raises:
        UsageError: the assertion would always hold or never.
    """
    lowest = -1.0 if assertion.against_base else 0.0
    if measure.is_share and not lowest <= assertion.number <= 1.0:
        quantity = f"{measure.name} minus the base's" if assertion.against_base else measure.name
        raise UsageError(f"--assert: {assertion.text}: {quantity} is between {lowest:g} and 1 (100%)")


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda value, bound: value >= bound,
    ">": lambda value, bound: value > bound,
    "<=": lambda value, bound: value <= bound,
    "<": lambda value, bound: value < bound,
}


def parse_assertion(text: str, option: str = "--assert") -> Assertion:
    """Parse an assertion, which is the value of this option.

    Raises:
        UsageError: the syntax is wrong; the message marks the place.
    """
    return _AssertionParser(text, option).parse()


class _AssertionParser:
    """Parses an assertion from left to right."""

    def __init__(self, text: str, option: str) -> None:
        self._text, self._option, self._position = text, option, 0

    def parse(self) -> Assertion:
        metric = self._expect("word", "a metric, such as accuracy")
        if metric == _BASE:
            raise self._error("expected a metric; `base` belongs after the sign", -len(_BASE))
        sign = self._expect("sign", "one of >=, >, <= and <")
        if sign not in _COMPARE:
            raise self._error("expected one of >=, >, <= and <", -len(sign))
        if self._peek("number") or self._peek("sign") in ("+", "-"):
            against_base, number = False, self._parse_number()
        else:
            bound = self._expect("word", "`base` or a number")
            if bound != _BASE:
                raise self._error(f"expected `base` or a number, not {bound!r}", -len(bound))
            against_base, number = True, self._parse_number() if self._remaining_text() else 0.0
        if self._remaining_text():
            raise self._error("expected the end of the assertion")
        return Assertion(self._text, metric, sign, against_base, number)

    def _parse_number(self) -> float:
        sign = self._expect("sign", "+ or -") if self._peek("number") is None else "+"
        if sign not in ("+", "-"):
            raise self._error("expected + or -", -len(sign))
        number = self._expect("number", "a number, such as 0.02 or 2%")
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        if not math.isfinite(value):
            raise self._error("expected a smaller number", -len(number))
        return -value if sign == "-" else value

    def _remaining_text(self) -> str:
        return self._text[self._position :].strip()

    def _peek(self, kind: str) -> str | None:
        match = _TOKEN.match(self._text, self._position)
        return match[kind] if match else None

    def _expect(self, kind: str, expected: str) -> str:
        match = _TOKEN.match(self._text, self._position)
        if match is None or match[kind] is None:
            raise self._error(f"expected {expected}")
        self._position = match.end()
        return str(match[kind])

    def _error(self, problem: str, width: int = 0) -> UsageError:
        """Return an error that marks the next token, or the last `width` characters before it."""
        rest = self._text[self._position :]
        position = self._position + width if width else self._position + len(rest) - len(rest.lstrip())
        return UsageError(f"{self._option}: {problem}\n  {self._text}\n  {' ' * position}^\nsyntax: {_SYNTAX}")
