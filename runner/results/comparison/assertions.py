"""`accuracy >= base - 0.02`: what a user asserts of a system, read without executing anything, and judged.

    assertion:  METRIC  >= | > | <= | <  bound
    bound:      NUMBER  |  base  |  base + NUMBER  |  base - NUMBER

A number is a decimal, or a percentage: `2%` is 0.02. An assertion holds where the whole 95 % interval does; it does not
where none of the interval does; else the data cannot tell.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from runner.base.errors import UsageError
from runner.results.metric_table import Metric

_TOKEN = re.compile(
    r"\s*(?:(?P<number>\d+(?:\.\d*)?(?:[eE][+-]?\d+)?%?|\.\d+%?)|(?P<word>[A-Za-z_]\w*(?:\.\w+)*)|(?P<sign>>=|<=|[<>+-]))"
)
_FORM = "METRIC >= base - 0.02, or METRIC >= 0.8; the signs are >=, >, <= and <"
_BASE = "base"


class AssertionResult(StrEnum):
    """What became of an assertion."""

    HOLDS = "holds"
    FAILS = "does not hold"
    UNDECIDED = "cannot be decided"


@dataclass(frozen=True)
class Assertion:
    """A metric of a system, less that of the base or not, is on one side of a number."""

    text: str
    metric: str
    sign: str
    against_base: bool
    number: float

    def judged(self, low: float | None, high: float | None) -> AssertionResult:
        """By the 95 % interval of the metric, or of its difference from the base's."""
        if low is None or high is None:
            return AssertionResult.UNDECIDED
        compare = _COMPARE[self.sign]
        ends = {compare(low, self.number), compare(high, self.number)}
        return (
            AssertionResult.UNDECIDED
            if len(ends) == 2
            else AssertionResult.HOLDS
            if ends == {True}
            else AssertionResult.FAILS
        )


def check_bound(assertion: Assertion, measure: Metric) -> None:
    """See that a share is asserted to be one.

    Raises:
        UsageError: it could never be so, or never be otherwise.
    """
    least = -1.0 if assertion.against_base else 0.0
    if measure.is_share and not least <= assertion.number <= 1.0:
        what = f"{measure.name} less the base's" if assertion.against_base else measure.name
        raise UsageError(f"--assert: {assertion.text}: {what} is from {least:g} to 1 (100%)")


_COMPARE: dict[str, Callable[[float, float], bool]] = {
    ">=": lambda one, other: one >= other,
    ">": lambda one, other: one > other,
    "<=": lambda one, other: one <= other,
    "<": lambda one, other: one < other,
}


def parse_assertion(text: str) -> Assertion:
    """Read an assertion.

    Raises:
        UsageError: it has another form; the message marks the place.
    """
    return _Reader(text).assertion()


class _Reader:
    """The words of an assertion, from the left."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text, 0

    def assertion(self) -> Assertion:
        metric = self._take("word", "a metric, such as accuracy")
        if metric == _BASE:
            raise self._wrong("a metric stands first, and `base` behind the sign", -len(_BASE))
        sign = self._take("sign", "one of >=, >, <= and <")
        if sign not in _COMPARE:
            raise self._wrong("one of >=, >, <= and < stands here", -len(sign))
        if self._next("number") or self._next("sign") in ("+", "-"):
            against, number = False, self._signed()
        else:
            word = self._take("word", "`base` or a number")
            if word != _BASE:
                raise self._wrong(f"`base` or a number stands here, not {word!r}", -len(word))
            against, number = True, self._signed() if self._rest() else 0.0
        if self._rest():
            raise self._wrong("nothing more can stand here")
        return Assertion(self._text, metric, sign, against, number)

    def _signed(self) -> float:
        sign = self._take("sign", "+ or -") if self._next("number") is None else "+"
        if sign not in ("+", "-"):
            raise self._wrong("+ or - stands here", -len(sign))
        number = self._take("number", "a number, such as 0.02 or 2%")
        value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        if not math.isfinite(value):
            raise self._wrong("a smaller number stands here", -len(number))
        return -value if sign == "-" else value

    def _rest(self) -> str:
        return self._text[self._at :].strip()

    def _next(self, kind: str) -> str | None:
        found = _TOKEN.match(self._text, self._at)
        return found[kind] if found else None

    def _take(self, kind: str, wanted: str) -> str:
        found = _TOKEN.match(self._text, self._at)
        if found is None or found[kind] is None:
            raise self._wrong(f"{wanted} stands here")
        self._at = found.end()
        return str(found[kind])

    def _wrong(self, what: str, back: int = 0) -> UsageError:
        """An error with the place of it marked: where the next word begins, or the last one did."""
        rest = self._text[self._at :]
        at = self._at + back if back else self._at + len(rest) - len(rest.lstrip())
        return UsageError(f"--assert: {what}\n  {self._text}\n  {' ' * at}^\nthe form is: {_FORM}")
