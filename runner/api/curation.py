"""The public function that tests a program, for checkers of answers that models state."""

from __future__ import annotations

import atexit
import threading
from collections.abc import Mapping

from runner.curation.benchmark_formats import APPS_IMPORTS, ProgramFormat, parse_tests
from runner.curation.program_tester import ProgramTester, ProgramTestSettings
from runner.curation.program_tests import Program, is_correct
from runner.curation.sandbox.probe import choose_mechanism
from runner.curation.sandbox.sandbox import RunLimits

_testers: dict[float, ProgramTester] = {}
_lock = threading.Lock()


def passes_tests(
    program: str, columns: Mapping[str, object], format_: ProgramFormat, *, cpu_seconds: float = 5.0
) -> bool:
    """Return whether a Python program passes all tests of a problem, in the sandbox of this machine.

    `columns` has the columns of the problem. `format_` says which of them have the tests: `apps`: `input_output`;
    `humaneval`: `test` and `entry_point`; `mbpp`: `test_list`. `cpu_seconds` is the limit of each test. The first call
    of a process takes some seconds, because it attacks the sandbox to check it.

        >>> from runner import passes_tests
        >>> passes_tests("def double(x): return x + x", {"test_list": ["assert double(2) == 4"]}, "mbpp")
        True

    Raises:
        ValueError: the columns have no tests in this format.
        RunError: a test is not Python, or no sandbox of this machine blocks all attacks.
    """
    tests = parse_tests(columns, format_)
    if not tests:
        raise ValueError("the problem has no tests")
    (results,) = _tester(cpu_seconds).test([(Program(program, APPS_IMPORTS if format_ == "apps" else ""), tests)])
    return is_correct(results)


def _tester(cpu_seconds: float) -> ProgramTester:
    with _lock:
        if cpu_seconds not in _testers:
            settings = ProgramTestSettings(RunLimits(cpu_seconds=cpu_seconds))
            tester = _testers[cpu_seconds] = ProgramTester(choose_mechanism(), settings)
            atexit.register(tester.__exit__)
        return _testers[cpu_seconds]
