"""Check merged data against a JSON Schema and report each violation with its place and the nearest valid key.

Patterns mean the same as in editors, where `$` matches only the end of the text. In Python, `$` also matches before a
newline at the end.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any, cast

from runner.base.batches import group_pairs
from runner.base.problems import Problem
from runner.base.redaction import remember_secret, secrets_in
from runner.base.text import comma_join, did_you_mean, encoding_problem
from runner.documents.dataclass_schema import TYPE_NAMES
from runner.documents.merged_data import LayeredData
from runner.documents.plain_values import KeyPath, dotted
from runner.documents.yaml_writer import dump_inline

if TYPE_CHECKING:
    from jsonschema import ValidationError

MAX_INTEGER = 2**63 - 1
"""The largest whole number that a Parquet column can hold."""

LONGEST_EXAMPLE = 60
"""Maximum number of characters of an example that a message shows."""

_TYPOGRAPHIC = frozenset("\u201c\u201d\u201e\u00ab\u00bb\u2018\u2019\u201a")
"""Quotes that YAML does not recognize; word processors and chat programs insert them."""

_TOO_MANY_BITS = "a whole number has at most 63 bits here"


@cache
def _compile_pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(re.sub(r"\$$", r"\\Z", pattern))


def _check_pattern(_: Any, pattern: str, value: Any, __: Any) -> Iterator[ValidationError]:
    from jsonschema import ValidationError

    if isinstance(value, str) and not _compile_pattern(pattern).search(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _is_integer(_: Any, value: Any) -> bool:
    """Return whether a value is a whole number that fits into a Parquet column; JSON Schema also accepts 1e19."""
    if isinstance(value, float):
        return value.is_integer() and abs(value) <= MAX_INTEGER
    return isinstance(value, int) and not isinstance(value, bool)


@cache
def _validator() -> Any:
    # Imported here because worker processes import this module but never check a spec.
    from jsonschema import Draft202012Validator
    from jsonschema.validators import extend

    return extend(  # type: ignore[no-untyped-call]
        Draft202012Validator,
        {"pattern": _check_pattern},
        type_checker=Draft202012Validator.TYPE_CHECKER.redefine("integer", _is_integer),
    )


def check_schema(layered: LayeredData, schema: dict[str, Any]) -> list[Problem]:
    """Return a problem for each violation of the schema, and for each value that a run's files cannot store."""
    unwritable = list(_find_unwritable(layered.data, (), layered))
    if _is_valid(layered.data, schema, schema.get("$defs", {})):
        return unwritable
    validator = _validator()(schema)
    keys = {problem.key for problem in unwritable}
    errors = list(validator.iter_errors(layered.data))
    enums = {tuple(error.absolute_path) for error in errors if error.validator == "enum"}  # these imply the type
    relevant = (error for error in errors if error.validator != "type" or tuple(error.absolute_path) not in enums)
    problems = [p for error in relevant for p in _problems_of_error(error, layered, validator)]
    return [*(problem for problem in problems if problem.key not in keys), *unwritable]


_TYPES: dict[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_integer(None, value),
    "number": lambda value: isinstance(value, (int, float)) and not isinstance(value, bool),
    "null": lambda value: value is None,
}
_LIMITS: dict[str, tuple[str, Callable[[Any, Any], bool]]] = {
    "minimum": ("number", operator.ge),
    "maximum": ("number", operator.le),
    "exclusiveMinimum": ("number", operator.gt),
    "exclusiveMaximum": ("number", operator.lt),
    "minLength": ("string", lambda value, length: len(value) >= length),
    "minItems": ("array", lambda value, length: len(value) >= length),
    "minProperties": ("object", lambda value, length: len(value) >= length),
    "pattern": ("string", lambda value, pattern: _compile_pattern(pattern).search(value) is not None),
    "required": ("object", lambda value, names: value.keys() >= set(names)),
}
"""The type of values that each keyword limits, and the check of such a value."""
_ANNOTATIONS = frozenset(
    ("$schema", "$defs", "title", "description", "default", "examples", "writeOnly", "patternErrorMessage")
)


def _is_valid(value: Any, rule: Mapping[str, Any], definitions: Mapping[str, Any]) -> bool:
    """Return whether a value is certainly valid. If so, jsonschema need not be imported, which takes long."""

    def fits(keyword: str, argument: Any) -> bool:
        if keyword in _LIMITS:
            kind, check_limit = _LIMITS[keyword]
            return not _TYPES[kind](value) or check_limit(value, argument)
        match keyword:
            case "type":
                return any(_TYPES[kind](value) for kind in ([argument] if isinstance(argument, str) else argument))
            case "$ref":
                return _is_valid(value, definitions[argument.removeprefix("#/$defs/")], definitions)
            case "enum":
                return any(type(item) is type(value) and item == value for item in argument)
            case "anyOf":
                return any(_is_valid(value, arm, definitions) for arm in argument)
            case "properties" if isinstance(value, dict):
                return all(_is_valid(value[name], argument[name], definitions) for name in argument.keys() & value)
            case "additionalProperties" if isinstance(value, dict):
                other_items = [item for name, item in value.items() if name not in rule.get("properties", ())]
                return not other_items or (
                    argument is not False and all(_is_valid(item, argument, definitions) for item in other_items)
                )
            case "propertyNames" if isinstance(value, dict):
                return all(_is_valid(name, argument, definitions) for name in value)
            case "items" if isinstance(value, list):
                return all(_is_valid(item, argument, definitions) for item in value)
        return keyword in _ANNOTATIONS or keyword in ("properties", "additionalProperties", "propertyNames", "items")

    return all(fits(keyword, argument) for keyword, argument in rule.items())


def _find_unwritable(value: Any, key_path: KeyPath, layered: LayeredData) -> Iterator[Problem]:
    """Yield a problem for each value that JSON cannot store (infinity, NaN, lone surrogates) or a column cannot."""
    message = None
    if isinstance(value, float) and not math.isfinite(value):
        message = f"{value} is not a finite number"
    elif isinstance(value, int) and not -MAX_INTEGER <= value <= MAX_INTEGER:
        message = _TOO_MANY_BITS
    elif isinstance(value, str):
        message = encoding_problem(value)
    if message is not None:
        yield layered.problem_at(key_path, message)
    if isinstance(value, dict):
        for name, item in value.items():
            problem = encoding_problem(name)
            if problem is not None:
                yield layered.problem_at((*key_path, name), problem)
            yield from _find_unwritable(item, (*key_path, name), layered)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _find_unwritable(item, (*key_path, index), layered)


def _problems_of_error(error: ValidationError, layered: LayeredData, validator: Any) -> Iterator[Problem]:
    """Yield the problems that users see for one error of the JSON Schema validator."""
    key_path = tuple(error.absolute_path)
    if error.validator == "anyOf" and error.context:
        yield from _likeliest_arm_problems(error, layered, validator)
        return
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        properties = cast("dict[str, Any]", error.schema).get("properties", {})
        for name in error.instance:
            if name not in properties:
                for secret in secrets_in({name: str(error.instance[name])}):  # such as an `api_key`
                    remember_secret(secret)
                yield Problem(
                    layered.place_of_value((*key_path, name)),
                    dotted((*key_path, name)),
                    f"unknown key{did_you_mean(name, properties) or '; known are ' + comma_join(properties)}",
                    "unknown key",
                )
        return
    if "propertyNames" in error.absolute_schema_path:
        key_path = (*key_path, str(error.instance))  # the key itself is wrong, not its value
    key = dotted(key_path)
    message = _violation_message(error)
    place = layered.place_of_value(key_path) if key_path else replace(layered.place_of_value(key_path), source=None)
    problem = Problem(place, key or "(root)", message + _next_step(error, message))
    # The names of missing keys reveal nothing about the file, so the message may serve as the kind.
    yield replace(problem, kind=message) if error.validator == "required" else problem


def _likeliest_arm_problems(error: ValidationError, layered: LayeredData, validator: Any) -> Iterator[Problem]:
    """Yield the problems of the `anyOf` alternative with the fewest problems; an unexpected type if no one has it."""
    arms = group_pairs((int(inner.relative_schema_path[0]), inner) for inner in error.context or ())
    fitting = [
        errors for errors in arms.values() if not any(e.validator == "type" and not e.relative_path for e in errors)
    ]
    if fitting:
        for inner in min(fitting, key=len):
            yield from _problems_of_error(inner, layered, validator)
        return
    key_path = tuple(error.absolute_path)
    kinds = [kind for errors in arms.values() for e in errors if e.validator == "type" for kind in _expected_types(e)]
    message = _expected_message(kinds, error.instance)
    yield Problem(layered.place_of_value(key_path), dotted(key_path), message + _next_step(error, message))


def _expected_types(error: ValidationError) -> list[str]:
    value: Any = error.validator_value
    return [value] if isinstance(value, str) else list(value)


def _expected_message(kinds: list[str], value: Any) -> str:
    """Return the message that a value should have one of these JSON Schema types."""
    if "integer" in kinds and isinstance(value, float) and abs(value) > MAX_INTEGER:
        return _TOO_MANY_BITS
    if {*kinds} <= {"array", "null"} and isinstance(value, (str, int, float)):
        return f"expected a list, not {_quote(value)}; write {value.split() if isinstance(value, str) else [value]}"
    expected = " or ".join(TYPE_NAMES[kind] for kind in dict.fromkeys(kinds) if kind != "null")
    quotes = (
        "; if you mean a text, put it in quotes" if "string" in kinds and not isinstance(value, (dict, list)) else ""
    )
    return f"expected {expected}, not {_quote(value)}{quotes}"


def _quote(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, (dict, list)):
        return TYPE_NAMES["object" if isinstance(value, dict) else "array"]
    text = repr(value) if isinstance(value, str) else str(value).lower() if isinstance(value, bool) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _next_step(error: ValidationError, message: str) -> str:
    """Return a hint (the keys of a mapping, or the key's example) unless the message already has one."""
    if "; " in message:
        return ""
    rule = cast("dict[str, Any]", error.schema)
    if error.validator == "required" and isinstance(error.instance, dict):
        examples = {name: _example(rule["properties"][name]) for name in rule["required"] if name not in error.instance}
        return "".join(f"; add {name}: {example}" for name, example in examples.items() if example)
    if "properties" in rule:
        return f"; its keys are {comma_join(sorted(rule['properties'], key=lambda name: name != 'use'))}"
    example, name = _example(rule), next((part for part in reversed(error.absolute_path) if isinstance(part, str)), "")
    return f"; for example {name}: {example}" if example and name else ""


def _example(rule: dict[str, Any]) -> str:
    """Return a key's example as YAML, or "" if it is too long or missing."""
    examples = [example for example in rule.get("examples", ()) if example not in (None, {}, [])]
    text = dump_inline(examples[0]) if examples else ""
    return text if len(text) <= LONGEST_EXAMPLE else ""


def _violation_message(error: ValidationError) -> str:
    """Return the message for one error of the JSON Schema validator, without the next step."""
    rule: Any = error.validator_value
    value: Any = error.instance
    match error.validator:
        case "type":
            return _expected_message(_expected_types(error), value)
        case "required":
            missing = [name for name in rule if name not in value]
            return f"missing key{'s' if len(missing) > 1 else ''}: {comma_join(missing)}"
        case "enum":
            values = [str(item) for item in rule if item is not None]
            hint = did_you_mean(str(value), values) or "; write one of them"
            return f"{_quote(value)} is not one of {comma_join(values)}{hint}" if values[1:] else f"must be {values[0]}"
        case "minimum" | "exclusiveMinimum":
            bound = "at least" if error.validator == "minimum" else "more than"
            return f"{_quote(value)} is too small; must be {bound} {rule}"
        case "maximum" | "exclusiveMaximum":
            bound = "at most" if error.validator == "maximum" else "less than"
            return f"{_quote(value)} is too large; must be {bound} {rule}"
        case "minLength" | "minItems" | "minProperties":
            return "must not be empty" if rule == 1 else f"needs at least {rule} entries"
        case "pattern" if cast("dict[str, Any]", error.schema).get("writeOnly"):
            remember_secret(value)  # the value may be a secret, and the message quotes its line of the file
            return cast("str", cast("dict[str, Any]", error.schema)["patternErrorMessage"])
        case "pattern":
            if isinstance(value, str) and set(value) & _TYPOGRAPHIC:
                plain_text = "".join(letter for letter in value if letter not in _TYPOGRAPHIC)
                return f'{_quote(value)} has typographic quotes; use plain ones: "{plain_text}"'
            form = cast("dict[str, Any]", error.schema).get("patternErrorMessage")
            return f"{_quote(value)} does not have the form{f' {rule}' if form is None else f': {form}'}"
        case _:
            return error.message
