"""Further inputs for programs, made by small changes of the inputs that a problem's tests have."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from runner.base.hashing import derived_seed
from runner.curation.program_tests import CallTest, ProgramTest, StdinTest

_NUMBER: Final = re.compile(r"-?\d{1,18}(?!\d)")
_MAX_CHANGES: Final = 3
_MOST_BITS: Final = 14_000
"""Larger integers are not increased: Python prints none with more than 4,300 digits."""
_MAX_TRIES: Final = 10
"""Number of changed inputs that are tried for each input that is wanted, because some are equal to others."""


def fuzz_inputs(tests: Sequence[ProgramTest], count: int, *seed_parts: str | int) -> list[StdinTest | CallTest]:
    """Return up to `count` tests with changed inputs, without what is expected. Tests that are code are not changed."""
    seeds = [with_arguments(test) for test in tests]
    sources = [test for test in seeds if isinstance(test, (StdinTest, CallTest))]
    random = Random(derived_seed("fuzzed inputs", *seed_parts))
    known_inputs = {_input_of(test) for test in sources}
    fuzzed: list[StdinTest | CallTest] = []
    for _ in range(count * _MAX_TRIES if sources else 0):
        if len(fuzzed) == count:
            break
        test = _change_input(random.choice(sources), random)
        if _input_of(test) not in known_inputs:
            known_inputs.add(_input_of(test))
            fuzzed.append(test)
    return fuzzed


def with_arguments(test: ProgramTest) -> ProgramTest:
    """Return a test of a call with literal arguments, such as `f(1, [2])`, with the arguments as values."""
    if not isinstance(test, CallTest) or "arguments" in test.expression:
        return test
    try:
        call = ast.parse(test.expression, mode="eval").body
        if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and not call.keywords:
            arguments = [ast.literal_eval(argument) for argument in call.args]
            repr(arguments)  # raises ValueError for an integer that Python does not print
            return replace(test, expression=f"{call.func.id}(*arguments)", arguments=arguments)
    except (SyntaxError, ValueError, TypeError, MemoryError, RecursionError):
        pass  # arguments that are not literals
    return test


def _input_of(test: StdinTest | CallTest) -> str:
    return test.stdin if isinstance(test, StdinTest) else f"{test.expression} {test.arguments!r}"


def _change_input(test: StdinTest | CallTest, random: Random) -> StdinTest | CallTest:
    for _ in range(random.randint(1, _MAX_CHANGES)):
        if isinstance(test, StdinTest):
            test = StdinTest(_change_text(test.stdin, random), "")
        elif isinstance(test.arguments, (list, tuple)) and test.arguments:
            arguments = list(test.arguments)
            index = random.randrange(len(arguments))
            arguments[index] = _change_value(arguments[index], random)
            test = replace(test, arguments=arguments, expected=None)
    return test


def _change_text(text: str, random: Random) -> str:
    """Change a number in a text or, if it has none, a character. Lines stay lines."""
    numbers = list(_NUMBER.finditer(text))
    if numbers and random.random() < 0.8:
        match = random.choice(numbers)
        return f"{text[: match.start()]}{_change_integer(int(match[0]), random)}{text[match.end() :]}"
    positions = [i for i, character in enumerate(text) if character not in "\r\n"]
    if not positions:
        return text
    index, character = random.choice(positions), text[random.choice(positions)]
    changed = random.choice(("", text[index] * 2, character))
    return text[:index] + changed + text[index + 1 :]


def _change_integer(value: int, random: Random) -> int:
    changes: tuple[Callable[[], int], ...] = (
        lambda: value + 1,
        lambda: value - 1,
        lambda: 0,
        lambda: -value,
        lambda: value * 2,
        lambda: random.randint(min(0, value), max(10, value)),
    )
    change = random.choice(changes)
    return change() if value.bit_length() < _MOST_BITS else 0


def _change_value(value: Any, random: Random) -> Any:
    """Return a changed value of the same type; a value of another type than JSON has stays as it is."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return _change_integer(value, random)
    if isinstance(value, float):
        return random.choice((value + 1, -value, value / 2, 0.0))
    if isinstance(value, str):
        return _change_text(value, random)
    if isinstance(value, (list, tuple)):
        return type(value)(_change_items(list(value), random))
    if isinstance(value, dict) and value:
        key = random.choice(list(value))
        return {**value, key: _change_value(value[key], random)}
    return value


def _change_items(items: list[Any], random: Random) -> list[Any]:
    if not items:
        return items
    index, second = random.randrange(len(items)), random.randrange(len(items))
    action = random.choice(("change", "change", "remove", "repeat", "exchange"))
    if action == "change":
        items[index] = _change_value(items[index], random)
    elif action == "remove":
        del items[index]
    elif action == "repeat":
        items.insert(index, items[second])
    else:
        items[index], items[second] = items[second], items[index]
    return items
