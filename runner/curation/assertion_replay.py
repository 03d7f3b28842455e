"""Run a test's code without showing it to the program: each call of the program becomes a run of its own.

The code runs in the sandbox with stand-ins for the program's functions. The first call whose result is not known ends
it. The caller runs the program for that call, and then runs the code again with the result.
"""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

from runner.base.errors import errors_as
from runner.curation.program_tests import AssertionTest, Program, Verdict
from runner.curation.sandbox.sandbox import ProgramRun, RunOutcome
from runner.curation.sandbox.values import decode_value

MAX_CODE_CHARACTERS = 1_000_000

_REPLAY = '''
import json, random
from runner.curation.sandbox.values import decode_value, encode_value

class UnknownResult(BaseException):
    """Ends the test's code at a call whose result is not known; not an Exception, so that the code cannot catch it."""

def make_stand_in(name, results):
    def call(*positional, **keywords):
        key = json.dumps([name, encode_value(positional), encode_value(keywords)])
        if key not in results:
            raise UnknownResult(key)
        return decode_value(results[key])
    return call

def replay(code, functions, modules, results):
    random.seed(0)
    names = {"__name__": "test", **{name: __import__(name) for name in modules}}
    names.update((name, make_stand_in(name, results)) for name in functions)
    try:
        exec(compile(code, "test.py", "exec", dont_inherit=True), names)
    except UnknownResult as error:
        return ["call", error.args[0]]
    except Exception as error:
        return ["wrong", f"{type(error).__name__}: {error}"]
    return ["pass", ""]
'''


class FreeNames(NamedTuple):
    """The names that code uses without defining them: functions of the program, and modules of Python."""

    functions: tuple[str, ...]
    modules: tuple[str, ...]


class FunctionCall(NamedTuple):
    """A call of a function of the program. `key` identifies it among the results."""

    key: str
    name: str
    positional: tuple[Any, ...]
    keywords: Mapping[str, Any]

    @classmethod
    def from_key(cls, key: str) -> FunctionCall:
        name, positional, keywords = json.loads(key)
        return cls(key, name, decode_value(positional), decode_value(keywords))

    def run_of(self, program: Program) -> ProgramRun:
        """Return the run of the program that makes this call."""
        expression = f"{self.name}(*arguments[0], **arguments[1])"
        return ProgramRun(
            program.source, preamble=program.preamble, expression=expression, arguments=(self.positional, self.keywords)
        )


class ReplayEnd(NamedTuple):
    """The verdict of code that has run to its end."""

    verdict: Verdict
    detail: str


def find_free_names(test: AssertionTest) -> FreeNames:
    """Return the names that a test's code uses without defining them.

    Raises:
        ValueError: the code is not Python, or too long.
    """
    if len(test.code) > MAX_CODE_CHARACTERS:
        raise ValueError(f"the test has more than {MAX_CODE_CHARACTERS:,} characters")
    with errors_as(ValueError, "the test is not Python", SyntaxError, MemoryError, RecursionError):
        tree = ast.parse(test.code)
    used, defined = set[str](), set(dir(builtins))
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name, ctx=ast.Load()):
                used.add(name)
            case ast.Name(id=name) | ast.arg(arg=name) | ast.FunctionDef(name=name) | ast.ClassDef(name=name):
                defined.add(name)
            case ast.alias(name=name, asname=alias):
                defined.add(alias or name.partition(".")[0])
            case ast.ExceptHandler(name=str(name)):
                defined.add(name)
    free = sorted(used - defined)
    modules = tuple(name for name in free if name in sys.stdlib_module_names)
    return FreeNames(tuple(name for name in free if name not in modules), modules)


def replay_run(test: AssertionTest, names: FreeNames, results: Mapping[str, object]) -> ProgramRun:
    """Return the run of a test's code with the encoded results of the calls so far, by their keys."""
    arguments = (test.code, names.functions, names.modules, results)
    return ProgramRun(_REPLAY, expression="replay(*arguments)", arguments=arguments)


def parse_replay(outcome: RunOutcome) -> FunctionCall | ReplayEnd | None:
    """Return the call whose result is needed, or the verdict; None if the code did not end within the limits."""
    match outcome.value:
        case ["call", str(key)] if outcome.status == 0:
            return FunctionCall.from_key(key)
        case [("pass" | "wrong") as verdict, str(detail)] if outcome.status == 0:
            return ReplayEnd(Verdict(verdict), detail.encode("utf-8", "backslashreplace").decode())
    return None
