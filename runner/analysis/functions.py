"""Python functions that answer an analyzer's question, so that no model is asked.

A function gets a `Unit`. It returns an answer; or a mapping with `answer` and, if it likes, `reason` and `spans`; or
None, so that the model is asked; or `NOT_APPLICABLE`.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from runner.analysis.analyzer import Analyzer
from runner.analysis.quotation_search import exact_quotation
from runner.analysis.results import TextSpan, is_span
from runner.analysis.units import Unit
from runner.base.errors import RunError, UsageError
from runner.base.hashing import canonical
from runner.base.storage.strict_json import parse_strict_json
from runner.base.text import comma_join
from runner.models.api_keys import KeyUse, check_allowed, key_uses

NOT_APPLICABLE = "not applicable"

UnitFunction = Callable[[Unit], object]

FUNCTIONS: Mapping[str, UnitFunction] = {"exact_quotation": exact_quotation}
"""The built-in functions."""


class CodeAnswer(NamedTuple):
    """The result of a function."""

    answer: str | None
    """The answer; None if the question is not applicable."""
    reason: str | None = None
    spans: tuple[TextSpan, ...] = ()


def load_function(analyzer: Analyzer, allowed: Collection[KeyUse] = ()) -> UnitFunction | None:
    """Return the function of an analyzer; None if it has none. This executes the function's file.

    Raises:
        UsageError: there is no such function, or the analyzer was downloaded, and the user has not allowed programs.
        RunError: the file fails when it is loaded.
    """
    code = analyzer.file.code
    if code is None:
        return None
    if analyzer.code_path is None:
        if code not in FUNCTIONS:
            names = comma_join(FUNCTIONS)
            raise UsageError(
                f"{analyzer.path}: no built-in function {code!r}; use {names}, or write code: FILE.py:FUNCTION"
            )
        return FUNCTIONS[code]
    if analyzer.fetched is not None:
        uses = key_uses((), [(("python", analyzer.code_path.name), ())])
        check_allowed(uses, allowed, f"the analyzer {analyzer.path} was downloaded (in {analyzer.fetched})")
    return _load_from_file(analyzer, code.partition(":")[2])


def _load_from_file(analyzer: Analyzer, name: str) -> UnitFunction:
    path, namespace = str(analyzer.code_path), {"__name__": analyzer.name}
    try:
        exec(compile(analyzer.code_source or "", path, "exec"), namespace)  # noqa: S102 - the user's own, or allowed
    except (Exception, SystemExit) as error:
        raise RunError(f"{path} fails when it is loaded: {_describe(path, error)}") from error
    function: Any = namespace.get(name)
    if not callable(function):
        raise UsageError(f"{path} has no function {name!r}; define it, or correct `code` in {analyzer.path}")
    call: UnitFunction = function
    return call


def answer_by_code(analyzer: Analyzer, function: UnitFunction, unit: Unit) -> CodeAnswer | None:
    """Return the function's answer about a unit; None if the model must be asked. The function gets no label.

    Raises:
        RunError: the function fails, or returns something else than an answer.
    """
    subject = f"{analyzer.file.code} of {analyzer.path} failed on unit {unit.id}"
    try:
        result = function(replace(unit, label=None, verdict=None))
    except (Exception, SystemExit) as error:
        raise RunError(f"{subject}: {_describe(str(analyzer.code_path), error)}") from error
    if result is None:
        return None
    content: Mapping[str, Any] = result if isinstance(result, Mapping) else {"answer": result}
    answer, reason = content.get("answer"), content.get("reason")
    if answer == NOT_APPLICABLE and answer not in analyzer.file.answers:
        answer = None
    elif answer not in analyzer.file.answers:
        answers = comma_join(analyzer.file.answers)
        raise RunError(f"{subject}: it returned {answer!r}; return {answers}, {NOT_APPLICABLE!r} or None")
    try:
        spans = tuple(span if isinstance(span, TextSpan) else TextSpan(**span) for span in content.get("spans", ()))
        if not all(map(is_span, parse_strict_json(canonical(spans)))):  # as the table stores them
            raise TypeError("a value is missing, or has a wrong type")
    except TypeError as error:
        fields = "agent, channel, round, start and end"
        raise RunError(f"{subject}: it returned spans that cannot be used ({error}); give each {fields}") from error
    return CodeAnswer(answer, None if reason is None else str(reason).encode("utf-8", "replace").decode(), spans)


def _describe(path: str, error: BaseException) -> str:
    """Return an exception with its line in the user's file."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    line = f" (line {frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{line}"
