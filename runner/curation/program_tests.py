"""Tests of programs: a stdin with its output, an expression with its value, or code with assertions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    """The result of one test of a program."""

    PASS = "pass"  # noqa: S105 - no password
    WRONG = "wrong"
    CRASH = "crash"
    TIME = "time"
    MEMORY = "memory"
    OUTPUT = "output limit"


@dataclass(frozen=True)
class Program:
    """A Python program. The preamble, such as imports, is executed before it."""

    source: str
    preamble: str = ""


@dataclass(frozen=True)
class StdinTest:
    """A test that runs the program on a stdin and compares what it prints."""

    stdin: str
    expected: str


@dataclass(frozen=True)
class CallTest:
    """A test that evaluates an expression after the program and compares its value.

    In `expression` and in `setup`, which is executed first, `arguments` is the name of that field's value. With
    `in_json`, the expected value was stored as JSON.
    """

    expression: str
    expected: object
    setup: str = ""
    arguments: object = ()
    in_json: bool = False


@dataclass(frozen=True)
class AssertionTest:
    """A test that is code with assertions about functions of the program.

    The code runs in another process than the program, so the program does not see it. Each call of a function that the
    code does not define becomes a run of the program. Arguments and returned values must be of built-in types. The code
    does not see changes that a function makes to its arguments; use a `CallTest` with `setup` for these.
    """

    code: str


ProgramTest = StdinTest | CallTest | AssertionTest


@dataclass(frozen=True)
class ProgramTestResult:
    """The verdict of each repetition of a test, with details about the first and the CPU seconds of all."""

    verdicts: tuple[Verdict, ...]
    detail: str
    cpu_seconds: float

    @property
    def verdict(self) -> Verdict:
        """The verdict of the first repetition."""
        return self.verdicts[0]

    @property
    def is_flaky(self) -> bool:
        return len(set(self.verdicts)) > 1


def is_correct(results: Sequence[ProgramTestResult]) -> bool:
    """Return whether a program passes all its tests, in every repetition."""
    return all(result.verdict is Verdict.PASS and not result.is_flaky for result in results)
