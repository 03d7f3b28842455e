"""Parse problems and their tests in the formats of APPS, HumanEval and MBPP."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterable, Mapping
from typing import Any, Literal, get_args

from runner.base.errors import errors_as
from runner.curation.assertion_replay import MAX_CODE_CHARACTERS
from runner.curation.program_tests import AssertionTest, CallTest, ProgramTest, StdinTest

ProgramFormat = Literal["apps", "humaneval", "mbpp"]
"""A format of problems. Its columns are those of the benchmark that it is named after."""

APPS_IMPORTS = """
import collections, fractions, functools, heapq, itertools, math, random, sys, time
from collections import ChainMap, Counter, OrderedDict, defaultdict, deque
from functools import lru_cache
from heapq import *
from itertools import accumulate, combinations, permutations, product
from math import ceil, cos, exp, fabs, floor, gcd, log, log2, sin, sqrt, tan
from typing import *
"""
"""A preamble with the names that solutions in APPS expect."""


def parse_tests(columns: Mapping[str, Any], format_: ProgramFormat) -> list[ProgramTest]:
    """Return the tests in the columns of a problem.

    Raises:
        ValueError: a column is missing, or its value is not in this format.
    """
    if format_ not in (formats := get_args(ProgramFormat)):
        raise ValueError(f"{format_!r} is not a format of tests; choose one of {', '.join(formats)}")
    try:
        if format_ == "apps":
            return parse_apps_tests(columns["input_output"])
        if format_ == "humaneval":
            return parse_humaneval_tests(str(columns["test"]), str(columns["entry_point"]))
        assertions = columns["test_list"]
        if isinstance(assertions, str):
            with errors_as(ValueError, "test_list is not JSON", json.JSONDecodeError):
                assertions = json.loads(assertions)
        if not isinstance(assertions, (list, tuple)) or not all(isinstance(line, str) for line in assertions):
            raise ValueError("test_list is not a list of assertions")
        return parse_assertions(assertions, str(columns.get("test_setup_code") or ""))
    except KeyError as error:
        raise ValueError(f"there is no column {error}") from error


def parse_apps_tests(input_output: str | Mapping[str, Any]) -> list[ProgramTest]:
    """Return the tests of an APPS problem: `inputs`, `outputs`, and `fn_name` if they are calls of a function.

    Raises:
        ValueError: it is not in this format.
    """
    with errors_as(ValueError, "input_output is not JSON", json.JSONDecodeError):
        content = json.loads(input_output) if isinstance(input_output, str) else input_output
    with errors_as(ValueError, "input_output has no lists `inputs` and `outputs`", KeyError, TypeError):
        inputs, outputs = list(content["inputs"]), list(content["outputs"])
    if len(inputs) != len(outputs):
        raise ValueError(f"input_output has {len(inputs)} inputs, but {len(outputs)} outputs")
    pairs = list(zip(inputs, outputs, strict=True))
    name = content.get("fn_name")
    if name is None:
        return [StdinTest(_join_lines(stdin), _join_lines(expected)) for stdin, expected in pairs]
    if not str(name).isidentifier():
        raise ValueError(f"fn_name is not the name of a function: {name!r}")
    expression = f"(Solution().{name} if 'Solution' in globals() else {name})(*arguments)"
    return [
        CallTest(expression, expected, arguments=_restore_keys(arguments), in_json=True)
        for arguments, expected in pairs
    ]


def _join_lines(value: object) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)


def _restore_keys(value: Any) -> Any:
    """Turn keys that JSON has made texts back into integers, in a mapping or a list of mappings."""
    if isinstance(value, dict) and value and all(key.lstrip("-").isdecimal() for key in value):
        return {int(key): item for key, item in value.items()}
    return [_restore_keys(item) for item in value] if isinstance(value, list) else value


def parse_humaneval_tests(test: str, entry_point: str) -> list[ProgramTest]:
    """Return the test of a HumanEval problem, whose code defines `check(candidate)`."""
    return [AssertionTest(f"{test}\n\ncheck({entry_point})\n")]


def parse_assertions(assertions: Iterable[str], setup: str = "") -> list[ProgramTest]:
    """Return a test for each assertion, as in MBPP's `test_list` with its `test_setup_code`."""
    return [_parse_assertion(assertion, setup) for assertion in assertions]


def _parse_assertion(assertion: str, setup: str) -> ProgramTest:
    """Return a `CallTest` if the assertion compares an expression with a literal, which needs only one run."""
    try:
        if len(assertion) <= MAX_CODE_CHARACTERS:
            statement = ast.parse(assertion.strip()).body
            match statement:
                case [ast.Assert(test=ast.Compare(left=left, ops=[ast.Eq()], comparators=[expected]))]:
                    return CallTest(ast.unparse(left), ast.literal_eval(expected), setup)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass
    return AssertionTest(f"{setup}\n{assertion}\n")
