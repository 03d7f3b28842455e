"""Programs are tested in the sandbox with stdin, function calls, and assertions that they cannot see."""

from __future__ import annotations

import os
import time

import pytest

from runner.base.errors import RunError
from runner.curation.benchmark_formats import (
    APPS_IMPORTS,
    parse_apps_tests,
    parse_assertions,
    parse_humaneval_tests,
)
from runner.curation.program_tester import ProgramTester, ProgramTestSettings
from runner.curation.program_tests import (
    AssertionTest,
    CallTest,
    Program,
    ProgramTest,
    ProgramTestResult,
    StdinTest,
    Verdict,
    is_correct,
)
from runner.curation.sandbox import fork_server
from runner.curation.sandbox.fork_server import ProcessLimits
from runner.curation.sandbox.mechanisms import Mechanism
from runner.curation.sandbox.sandbox import ProgramRun

ADD = "print(sum(map(int, input().split())))"


def run_tests(tester: ProgramTester, source: str, *tests: ProgramTest, preamble: str = "") -> list[ProgramTestResult]:
    ((*program_results,),) = tester.test([(Program(source, preamble), tests)])
    return program_results


def run_for_verdicts(tester: ProgramTester, source: str, *tests: ProgramTest) -> list[Verdict]:
    return [result.verdict for result in run_tests(tester, source, *tests)]


@pytest.mark.parametrize(
    ("source", "verdict"),
    [
        (ADD, Verdict.PASS),
        ("print(6)", Verdict.WRONG),
        ("print(1 / 0)", Verdict.CRASH),
        ("print(", Verdict.CRASH),
        ("raise SystemExit(2)", Verdict.CRASH),
        ("import ctypes; ctypes.string_at(0)", Verdict.CRASH),
        ("while True: pass", Verdict.TIME),
        ("x = [0] * 10 ** 8", Verdict.MEMORY),
        ("while True: print('x' * 999)", Verdict.OUTPUT),
        ("import os; os.fork()", Verdict.CRASH),
        ("import sys; print(5); sys.exit()", Verdict.PASS),
        ("import threading; threading.Thread(target=lambda: print(5)).start()", Verdict.PASS),
        ("if __name__ == '__main__': print(5)", Verdict.PASS),
        ("import sys; print(sum(map(int, sys.stdin.buffer.read().split())))", Verdict.PASS),
        ("x = int\ndef add(a: x): ...\nprint(5 if add.__annotations__['a'] is int else 0)", Verdict.PASS),
    ],
)
def test_each_outcome_of_a_program_has_its_verdict(tester: ProgramTester, source: str, verdict: Verdict) -> None:
    assert run_for_verdicts(tester, source, StdinTest("2 3\n", "5\n")) == [verdict]


def test_detail_states_the_difference_or_the_error(tester: ProgramTester) -> None:
    assert run_tests(tester, "print(6)", StdinTest("", "5"))[0].detail == "expected '5', but got '6\\n'"
    assert run_tests(tester, "1 / 0", StdinTest("", "5"))[0].detail == "ZeroDivisionError: division by zero"


def test_apps_tests_are_stdins_or_calls(tester: ProgramTester) -> None:
    stdins = parse_apps_tests('{"inputs": ["1 2", ["3", "4"]], "outputs": ["3", ["3"]]}')
    assert stdins == [StdinTest("1 2", "3"), StdinTest("3\n4", "3")]
    assert run_for_verdicts(tester, ADD, *stdins) == [Verdict.PASS] * 2
    calls = parse_apps_tests({"inputs": [[[1, 2]], [[]]], "outputs": [[[1, 2]], [None]], "fn_name": "ends"})
    source = (
        "class Solution:\n    def ends(self, items: List[int]):\n"
        "        return (min(items), max(items)) if items else None"
    )
    assert is_correct(run_tests(tester, source, *calls, preamble=APPS_IMPORTS))
    assert run_for_verdicts(tester, "def ends(items): return items[:1]", *calls) == [Verdict.WRONG] * 2
    for wrong, message in (
        ({"inputs": ["1"]}, "input_output has no lists `inputs` and `outputs`: 'outputs'"),
        ({"inputs": ["1"], "outputs": []}, "input_output has 1 inputs, but 0 outputs"),
        ("{bad", "input_output is not JSON: "),
    ):
        with pytest.raises(ValueError, match=message):
            parse_apps_tests(wrong)


HUMANEVAL = """
def check(candidate):
    assert candidate([1, 2]) == 3
    assert abs(candidate([0.1, 0.2]) - 0.3) < 1e-9
    for size in range(3):
        assert candidate(list(range(size))) == double(sum(range(size))) / 2, "sums"
    assert math.isclose(candidate([]), 0)
"""


def test_humaneval_tests_call_functions_of_the_program(tester: ProgramTester) -> None:
    (test,) = parse_humaneval_tests(HUMANEVAL, "total")
    double = "import math\ndef double(x): return 2 * x\n"
    assert is_correct(run_tests(tester, f"{double}def total(items): return sum(items)", test))
    (result,) = run_tests(tester, f"{double}def total(items): return sum(items[:1]) + sum(items[1:2])", test)
    assert result.verdict is Verdict.PASS
    (result,) = run_tests(tester, f"{double}def total(items): return round(sum(items))", test)
    assert (result.verdict, result.detail) == (Verdict.WRONG, "AssertionError: ")
    (result,) = run_tests(tester, f"{double}def total(items): return items[0] + items[1]", test)
    assert (result.verdict, result.detail) == (Verdict.CRASH, "IndexError: list index out of range")


def test_mbpp_tests_are_assertions(tester: ProgramTester) -> None:
    tests = parse_assertions(
        ["assert f(2) == (2, {3})", "assert set(f(2)[1]) == {3}", "assert f(x=2)[0] > 1", "assert f(0)"]
    )
    assert [type(test) for test in tests] == [CallTest, CallTest, AssertionTest, AssertionTest]
    assert is_correct(run_tests(tester, "def f(x): return (x, {x + 1})", *tests))
    assert run_for_verdicts(tester, "def f(x): return (x, [x + 1])", *tests) == [Verdict.WRONG, *[Verdict.PASS] * 3]


def test_a_test_that_is_not_python_is_an_error(tester: ProgramTester) -> None:
    with pytest.raises(RunError, match="the test is not Python"):
        run_tests(tester, "", *parse_assertions(["assert f("]))


SEARCH = """
import gc, sys
def search():
    found, frame = [], sys._getframe(1)
    while frame:
        found += [*frame.f_locals.values(), *frame.f_globals.values()]
        frame = frame.f_back
    for item in gc.get_objects():
        found += item.values() if isinstance(item, dict) else item if isinstance(item, (list, tuple)) else ()
    return any(''.join(['a47', '11b']) in text for text in found if isinstance(text, str))
"""


def test_program_cannot_find_expected_values_or_assertions(tester: ProgramTester) -> None:
    assert is_correct(run_tests(tester, SEARCH, CallTest("search()", True, arguments=("a4711b",)))), (
        "it finds what is there"
    )
    assert is_correct(run_tests(tester, SEARCH, AssertionTest("hidden = 'a4711b'\nassert search() is False")))
    assert run_tests(tester, SEARCH, CallTest("search()", "a4711b"))[0].detail.endswith("but got False")


def test_program_cannot_affect_the_next_one(tester: ProgramTester) -> None:
    source = "import builtins, json\nbuiltins.len = json.dumps = lambda *_: 5\ndef f(): return len([])"
    assert [outcome.value for outcome in tester.run([ProgramRun(source, expression="f()")] * 2)] != [0, 0]
    assert run_for_verdicts(tester, "def f(): return len([])", CallTest("f()", 0)) == [Verdict.PASS]


def test_repetition_finds_programs_that_depend_on_the_order_of_sets(mechanism: Mechanism) -> None:
    source = "print(next(iter({str(number) for number in range(9)})))"
    with ProgramTester(mechanism, ProgramTestSettings(repetitions=4, workers=1)) as tester:
        (first,) = tester.run([ProgramRun(source)])
        flaky, steady = run_tests(tester, source, StdinTest("", first.stdout), StdinTest("", "nothing"))
    assert flaky.verdict is Verdict.PASS
    assert flaky.is_flaky
    assert not is_correct([flaky])
    assert steady.verdicts == (Verdict.WRONG,) * 4


def test_a_checker_replaces_the_comparison(mechanism: Mechanism) -> None:
    checker = "def check(given, output, expected):\n    return sorted(output.split()) == sorted(expected.split())"
    with ProgramTester(mechanism, ProgramTestSettings(checker=checker, workers=1)) as tester:
        assert run_for_verdicts(tester, "print('b a')", StdinTest("", "a b"), StdinTest("", "a")) == [
            Verdict.PASS,
            Verdict.WRONG,
        ]
    with ProgramTester(mechanism, ProgramTestSettings(checker="def check(*_): 1 / 0", workers=1)) as tester:
        (result,) = run_tests(tester, "print('b a')", StdinTest("", "a b"))
        assert result.detail == "the checker fails: ZeroDivisionError: division by zero"


def test_time_in_which_the_machine_is_busy_does_not_count_as_idle(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: seconds[0])
    monkeypatch.setattr(time, "clock_gettime", lambda _: 0.0)
    limits = ProcessLimits(cpu_seconds=5, idle_seconds=7, wall_seconds=110, memory=0, output=0)
    clock = fork_server._ProgramClock(os.getpid(), limits)
    for _ in range(60):  # called again only after 5 seconds each time
        seconds[0] += 5
        assert not clock.is_late()
    calls = 0  # 6 seconds have counted so far
    while not clock.is_late():
        seconds[0] += 0.05
        calls += 1
    assert calls == pytest.approx(20, abs=2)


@pytest.mark.parametrize(
    ("source", "detail"),
    [
        ("def f(x): return '\\ud800'", "AssertionError: \\ud800"),
        ("def f(x): return 'x' * 1000", f"AssertionError: {'x' * 183}…"),
        ("def f(x):\n  for _ in range(470): x = x,\n  return x", "a value of the program is nested too deeply"),
    ],
)
def test_hostile_value_in_an_assertion_is_wrong_with_a_short_printable_detail(
    tester: ProgramTester, source: str, detail: str
) -> None:
    (result,) = run_tests(tester, source, AssertionTest("value = f(1)\nassert f(value) == 1, value"))
    assert (result.verdict, result.detail) == (Verdict.WRONG, detail)
