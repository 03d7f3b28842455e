"""The problems of a recipe: questions with right programs and tests, read from the rows of its dataset."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from runner.base.errors import SpecError, errors_as
from runner.base.hashing import canonical
from runner.base.problems import Place, Problem
from runner.base.text import list_some
from runner.curation.assertion_replay import find_free_names
from runner.curation.benchmark_formats import APPS_IMPORTS, ProgramFormat, parse_tests
from runner.curation.generation.recipe import Recipe
from runner.curation.program_tests import AssertionTest, CallTest, Program, ProgramTest, StdinTest
from runner.curation.sandbox.values import encode_value

MAX_SOLUTIONS = 5
"""Number of given solutions of a problem that are used, from the first."""
MAX_PROGRAM = 100_000
"""Maximum number of characters of a program."""


@dataclass(frozen=True)
class CodingProblem:
    """A question with tests and, for bugs, the given solutions."""

    id: str
    question: str
    solutions: tuple[str, ...]
    tests: tuple[ProgramTest, ...]
    preamble: str = ""
    group: str = ""
    """Problems of one group are in one split."""

    def program(self, source: str) -> Program:
        return Program(source, self.preamble)

    def shown_inputs(self, count: int) -> list[str]:
        """Return the first inputs of tests as texts. Tests that are code have none."""
        inputs = [describe_input(test) for test in self.tests]
        return [text for text in inputs if text][:count]


@dataclass(frozen=True)
class ProblemRows:
    """The problems of a recipe, and the reason why each other row cannot be used."""

    problems: tuple[CodingProblem, ...]
    unusable: Mapping[str, str]


def read_problems(recipe: Recipe) -> ProblemRows:
    """Return the problems in the rows of a recipe's dataset.

    Raises:
        SpecError: no row can be used; the message has the first reasons.
    """
    problems: list[CodingProblem] = []
    unusable: dict[str, str] = {}
    format_ = recipe.file.tests.format
    for point in recipe.problems.datapoints:
        try:
            problem = _read_problem(point.id, point.columns, format_, needs_solution=recipe.file.make == "bugs")
            problems.append(replace(problem, group=point.group))
        except (ValueError, RecursionError) as error:
            unusable[point.id] = str(error)
    if not problems:
        reasons = list_some([f"{id_}: {reason}" for id_, reason in unusable.items()])
        message = f"no row is a problem with tests in the format {format_!r}: {reasons}"
        raise SpecError([Problem(Place(str(recipe.path)), "dataset", message)])
    return ProblemRows(tuple(problems), unusable)


def _read_problem(
    id_: str, columns: Mapping[str, object], format_: ProgramFormat, *, needs_solution: bool
) -> CodingProblem:
    tests = parse_tests(columns, format_)
    if not tests:
        raise ValueError("it has no tests")
    for test in tests:
        if isinstance(test, AssertionTest):
            find_free_names(test)  # raises ValueError if the test is not Python
        with errors_as(ValueError, "a test is nested too deeply, or has half of a surrogate pair", TypeError):
            canonical(encode_value(vars(test)))  # as the verdicts are stored
    prompt = str(columns.get("prompt") or "")
    question = str(columns.get("question") or prompt or columns.get("text") or "")
    if not question.strip():
        raise ValueError("the column 'question' is missing or empty")
    solutions = _read_solutions(columns.get("solutions"))
    if format_ == "humaneval" and not solutions and columns.get("canonical_solution"):
        solutions = [prompt + str(columns["canonical_solution"])]
    if needs_solution and not solutions:
        raise ValueError("the column 'solutions' is missing or empty")
    preamble = APPS_IMPORTS if format_ == "apps" else ""
    return CodingProblem(id_, question, tuple(solutions[:MAX_SOLUTIONS]), tuple(tests), preamble)


def _read_solutions(value: object) -> list[str]:
    """Return the programs in a cell: a list, a list in JSON, or one program."""
    if isinstance(value, str) and value.lstrip().startswith("["):
        with suppress(ValueError):  # a program that starts with a list
            value = json.loads(value)
    if isinstance(value, str):
        value = [value]
    if value is None:
        return []
    if not isinstance(value, (list, tuple)) or not all(isinstance(item, str) for item in value):
        raise ValueError("the column 'solutions' has neither a program nor a list of programs")
    return [item for item in value if item.strip() and len(item) <= MAX_PROGRAM]


def describe_input(test: ProgramTest) -> str:
    """Return the input of a test as a text; empty for a test that is code."""
    if isinstance(test, StdinTest):
        return test.stdin
    if not isinstance(test, CallTest):
        return ""
    return f"{test.expression}, arguments={test.arguments!r}" if "arguments" in test.expression else test.expression
