"""Comparisons of programs: the same program, the same shape, edit distances, and fuzzed inputs."""

from __future__ import annotations

import random

import pytest

from runner.curation.generation import input_fuzzing
from runner.curation.generation.input_fuzzing import fuzz_inputs, with_arguments
from runner.curation.generation.program_edits import describe_program, edit_distance, find_program, measure_edit
from runner.curation.program_tests import AssertionTest, CallTest, ProgramTest, StdinTest

PROGRAM = '''\
def total(items):
    """Add."""
    result = 0
    for item in items:
        result += item
    return result
'''


def test_layout_and_comments_do_not_change_a_program_and_names_not_its_shape() -> None:
    form = describe_program(PROGRAM)
    assert form is not None
    same = describe_program(PROGRAM.replace('"""Add."""', "# add").replace("= 0", "=  0"))
    assert same == form
    renamed = describe_program(PROGRAM.replace("result", "amount").replace("total", "add"))
    assert renamed is not None
    assert (renamed.tree == form.tree, renamed.shape == form.shape) == (False, True)
    for change in (("+=", "-="), ("in items", "in sorted(items)"), ("return result", "return item")):
        changed = describe_program(PROGRAM.replace(*change))
        assert changed is not None
        assert changed.shape != form.shape, change


def test_program_that_does_not_compile_has_no_form() -> None:
    for source in ("def f(:", "return 1", "x = " + "(" * 5000 + ")" * 5000, "\0", "break"):
        assert describe_program(source) is None, source[:20]
    deep = (
        "if x == 0:\n    y = 0\n"
        + "".join(f"elif x == {n}:\n    y = {n}\n" for n in range(1, 90))
        + "s = ''"
        + " + 'a'" * 800
    )
    assert describe_program(deep) is not None


def test_program_of_an_answer_is_its_last_code_block() -> None:
    assert find_program("First:\n```\nx = 1\n```\nBetter:\n```python\nx = 2\n```\nDone.") == "x = 2\n"
    assert find_program("x = 3") == "x = 3\n"
    assert find_program("```python\nx = 4\n```\nIt prints:\n```\n4\n```") == "x = 4\n"
    assert find_program("```\nx = 5\n```\nIt prints:\n```\n5 apples\n```") == "x = 5\n"
    assert find_program("1. So:\n   ```\n   if x:\n       y = 6\n   ```") == "if x:\n    y = 6\n"
    for empty in ("", " \n", "```python\n```", "x" * 100_001, "x = '\ud800'"):
        assert find_program(empty) is None


def test_edit_distance_equals_the_textbook_algorithm() -> None:
    def textbook(first: str, second: str) -> int:
        row = list(range(len(second) + 1))
        for i, a in enumerate(first, 1):
            previous, row = row, [i]
            for j, b in enumerate(second, 1):
                row.append(min(previous[j] + 1, row[-1] + 1, previous[j - 1] + (a != b)))
        return row[-1]

    rng = random.Random(7)
    for _ in range(200):
        first, second = ("".join(rng.choices("abé\U0001f600", k=rng.randrange(12))) for _ in range(2))
        assert edit_distance(first, second) == textbook(first, second), (first, second)
    edit = measure_edit("a\nb\nc\nd\n", "a\nb\nx\nd\n")
    assert (edit.distance, edit.share, edit.first_line, edit.position) == (1, 1 / 8, 3, 0.5)


def test_fuzzed_inputs_are_new_and_deterministic() -> None:
    tests: list[ProgramTest] = [
        StdinTest("2\n3 5\n", "8"),
        CallTest("f([1, 'a'], {2: True})", 3),
        AssertionTest("assert f(1) == 2"),
    ]
    inputs = fuzz_inputs(tests, 40, 0, "problem")
    assert inputs == fuzz_inputs(tests, 40, 0, "problem")
    assert len({repr(test) for test in inputs}) == 40
    assert "2\n3 5\n" not in {test.stdin for test in inputs if isinstance(test, StdinTest)}
    assert {test.expression for test in inputs if isinstance(test, CallTest)} == {"f(*arguments)"}
    assert all(test.stdin.count("\n") == 2 for test in inputs if isinstance(test, StdinTest))
    assert fuzz_inputs([AssertionTest("assert f(1) == 2")], 5, 0) == []
    assert fuzz_inputs([StdinTest("", "8")], 5, 0) == []
    inputs = fuzz_inputs([CallTest("f(*arguments)", 1, arguments=[int("9" * 4300)])], 30, 0)
    assert all(len(repr(test.arguments)) for test in inputs if isinstance(test, CallTest))  # no doubled integer


def test_no_inputs_are_tried_after_the_last_one_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    tried = (StdinTest(str(number), "") for number in range(1000))
    monkeypatch.setattr(input_fuzzing, "_change_input", lambda *_: next(tried))
    assert len(fuzz_inputs([StdinTest("x", "")], 30, 0)) == 30
    assert next(tried).stdin == "30"


def test_only_calls_with_literal_arguments_are_changed() -> None:
    for expression in ("f(x)", "f(1, key=2)", "f(1)[0]", "f(", "f(*arguments)"):
        test = CallTest(expression, 1, arguments=[5])
        assert with_arguments(test) == test
