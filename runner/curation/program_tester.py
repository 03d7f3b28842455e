"""Test programs in sandboxes, several at a time."""

from __future__ import annotations

import math
import os
import re
import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, NamedTuple, Self

from runner.base.errors import RunError
from runner.base.text import shortened
from runner.curation.assertion_replay import ReplayEnd, find_free_names, parse_replay, replay_run
from runner.curation.program_tests import (
    AssertionTest,
    CallTest,
    Program,
    ProgramTest,
    ProgramTestResult,
    StdinTest,
    Verdict,
)
from runner.curation.sandbox.mechanisms import Mechanism
from runner.curation.sandbox.sandbox import ProgramRun, RunLimits, RunOutcome, Sandbox, SandboxError
from runner.curation.sandbox.values import OpaqueValue, encode_value

MAX_CALLS = 1000
"""Maximum number of calls of the program in the code of one test."""

_MAX_DETAIL = 200


@dataclass(frozen=True)
class ProgramTestSettings:
    """Limits of each run; how often each test is repeated, each time with another seed of hashes; and workers.

    `checker` is Python source that defines `check(test_input, output, expected)`, where `test_input` is the stdin or
    the tuple of arguments. It replaces the comparison of `StdinTest` and `CallTest`, and runs in the sandbox, too.
    """

    limits: RunLimits = RunLimits()
    repetitions: int = 1
    workers: int | None = None
    checker: str | None = None


class _Trial(NamedTuple):
    """The result of one repetition of a test."""

    verdict: Verdict
    detail: str
    cpu_seconds: float


class ProgramTester:
    """A pool of sandboxes that tests programs. Each worker is a thread with sandboxes of its own."""

    def __init__(self, mechanism: Mechanism, settings: ProgramTestSettings | None = None) -> None:
        self._mechanism, self._settings = mechanism, settings or ProgramTestSettings()
        self._executor = ThreadPoolExecutor(self._settings.workers or os.cpu_count())
        self._sandboxes: dict[tuple[int, int], Sandbox] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown(cancel_futures=True)
        for sandbox in self._sandboxes.values():
            sandbox.close()

    def test(self, programs: Iterable[tuple[Program, Sequence[ProgramTest]]]) -> Iterator[list[ProgramTestResult]]:
        """Yield the results of each program's tests, in order.

        Raises:
            SandboxError: the sandbox cannot be started.
            RunError: the code of an `AssertionTest` is not Python.
        """
        futures = [
            [self._executor.submit(self._test_repeatedly, program, test) for test in tests]
            for program, tests in programs
        ]
        for tests in futures:
            yield [future.result() for future in tests]

    def run(self, runs: Iterable[ProgramRun], limits: RunLimits | None = None) -> Iterator[RunOutcome]:
        """Yield the outcome of each run, in order. Raises like `test`."""
        return self._executor.map(partial(self._run, limits=limits), runs)

    def _run(self, run: ProgramRun, hash_seed: int = 0, limits: RunLimits | None = None) -> RunOutcome:
        """Run a program in this thread's sandbox; if the sandbox ends, run it again in a new one.

        Raises:
            SandboxError: the sandbox cannot be started, or does not even run an empty program.
        """
        key = (threading.get_ident(), hash_seed)
        if key not in self._sandboxes:
            self._sandboxes[key] = Sandbox(self._mechanism, hash_seed)
        sandbox, limits = self._sandboxes[key], limits or self._settings.limits
        for _ in range(2):
            with suppress(SandboxError):
                return sandbox.run(run, limits)
        sandbox.run(ProgramRun(""), limits)
        return RunOutcome(1, None, 0.0, "", "the program has ended the sandbox twice", OpaqueValue("nothing"))

    def _test_repeatedly(self, program: Program, test: ProgramTest) -> ProgramTestResult:
        trials = [self._test_once(program, test, hash_seed) for hash_seed in range(self._settings.repetitions)]
        verdicts = tuple(trial.verdict for trial in trials)
        return ProgramTestResult(verdicts, trials[0].detail, sum(trial.cpu_seconds for trial in trials))

    def _test_once(self, program: Program, test: ProgramTest, hash_seed: int) -> _Trial:
        try:
            if isinstance(test, AssertionTest):
                return self._replay(program, test, hash_seed)
            return self._compare(program, test, hash_seed)
        except RecursionError:  # from a comparison, or from another call with the value
            return _Trial(Verdict.WRONG, "a value of the program is nested too deeply", 0.0)

    def _compare(self, program: Program, test: StdinTest | CallTest, hash_seed: int) -> _Trial:
        """Run the program once, and compare its output or its value with the expected one."""
        test_input: object
        if isinstance(test, StdinTest):
            run = ProgramRun(program.source, preamble=program.preamble, stdin=test.stdin)
            test_input = test.stdin
        else:
            run = ProgramRun(
                program.source, preamble=program.preamble, setup=test.setup, expression=test.expression,
                arguments=test.arguments,
            )  # fmt: skip
            test_input = test.arguments
        outcome = self._run(run, hash_seed)
        if (failure := _find_failure(outcome)) is not None:
            return failure
        output = outcome.stdout if isinstance(test, StdinTest) else outcome.value
        if self._settings.checker is not None:
            detail = self._ask_checker(self._settings.checker, (test_input, output, test.expected))
        else:
            detail = "" if _is_right(test, output) else _describe_difference(output, test.expected)
        return _Trial(Verdict.WRONG if detail else Verdict.PASS, detail, outcome.cpu_seconds)

    def _ask_checker(self, checker: str, arguments: tuple[object, ...]) -> str:
        """Return why the checker refuses an output; empty if it accepts the output."""
        outcome = self._run(ProgramRun(checker, expression="check(*arguments)", arguments=arguments))
        if (failure := _find_failure(outcome)) is not None:
            return f"the checker fails: {failure.detail}"
        return "" if outcome.value is True else "refused by the checker"

    def _replay(self, program: Program, test: AssertionTest, hash_seed: int) -> _Trial:
        """Run the code of a test, and the program for each call that it makes."""
        try:
            names = find_free_names(test)
        except ValueError as error:
            raise RunError(f"{error}; correct the test") from error
        results: dict[str, object] = {}
        cpu_seconds = 0.0
        while len(results) <= MAX_CALLS:
            outcome = self._run(replay_run(test, names, results))
            replay = parse_replay(outcome)
            if isinstance(replay, ReplayEnd):
                return _Trial(replay.verdict, shortened(replay.detail, _MAX_DETAIL), cpu_seconds)
            if replay is None:
                end = _find_failure(outcome) or _Trial(Verdict.WRONG, "the test's code has no result", 0.0)
                return end._replace(cpu_seconds=cpu_seconds)
            outcome = self._run(replay.run_of(program), hash_seed)
            cpu_seconds += outcome.cpu_seconds
            if (failure := _find_failure(outcome)) is not None:
                return failure._replace(cpu_seconds=cpu_seconds)
            results[replay.key] = encode_value(outcome.value)
        return _Trial(Verdict.TIME, f"the test calls the program more than {MAX_CALLS:,} times", cpu_seconds)


def _find_failure(outcome: RunOutcome) -> _Trial | None:
    """Return the result of a run that did not end well; None if it did."""
    if outcome.stopped is None and outcome.status == 0:
        return None
    verdicts = {"time": Verdict.TIME, "output": Verdict.OUTPUT, "threads": Verdict.CRASH, None: Verdict.CRASH}
    verdict = Verdict.MEMORY if outcome.is_out_of_memory else verdicts[outcome.stopped]
    lines = outcome.stderr.rstrip().splitlines()
    if outcome.stopped is not None:
        detail = f"over the limit of {outcome.stopped}"
    else:
        detail = lines[-1] if lines else f"exit code {outcome.status}"
    return _Trial(verdict, shortened(detail, _MAX_DETAIL), outcome.cpu_seconds)


def _is_right(test: StdinTest | CallTest, output: object) -> bool:
    if isinstance(test, StdinTest):
        return match_output(str(output), test.expected) is not None
    return is_equal_in_json(output, test.expected) if test.in_json else bool(output == test.expected)


def _describe_difference(output: object, expected: object) -> str:
    if isinstance(output, OpaqueValue):
        return f"the value cannot leave the sandbox: {output.type_name}"
    return f"expected {_shorten_value(expected)}, but got {_shorten_value(output)}"


def _shorten_value(value: object) -> str:
    try:
        return shortened(repr(value), _MAX_DETAIL // 2)
    except ValueError:  # an integer with more digits than Python prints
        return "a very large integer"


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


def is_equal_in_json(value: Any, expected: Any) -> bool:
    """Return whether a returned value equals an expected value that was stored as JSON, as in the APPS benchmark.

    JSON has no tuples, no sets and only texts as keys. Numbers with a fraction have a tolerance. APPS wraps some
    expected values in a list of one.
    """
    try:
        if _is_alike(value, expected):
            return True
        return isinstance(expected, list) and len(expected) == 1 and _is_alike(value, expected[0])
    except (OverflowError, ValueError):  # an integer that is too large for a float, or for the text of a key
        return False


def _is_alike(value: Any, expected: Any) -> bool:
    if isinstance(value, (list, tuple)) and isinstance(expected, list):
        return len(value) == len(expected) and all(map(_is_alike, value, expected))
    if isinstance(value, (set, frozenset)) and isinstance(expected, list):
        scalars = {item for item in expected if isinstance(item, (int, float, str))}  # found without a search
        return len(value) == len(expected) and all(
            item in scalars or any(_is_alike(item, candidate) for candidate in expected) for item in value
        )
    if isinstance(value, dict) and isinstance(expected, dict):
        texts = {str(key): item for key, item in value.items()}
        return texts.keys() == expected.keys() and all(_is_alike(texts[key], expected[key]) for key in texts)
    if isinstance(expected, float) and isinstance(value, (int, float)):
        return is_close(value, expected)
    return bool(value == expected)
