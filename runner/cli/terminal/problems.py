"""Errors as a person reads them, each with the line it is about, and as objects for programs."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterator
from typing import Any

from runner.base.errors import NipRunError, Place, Problem, QueryError, SpecError, split_message
from runner.base.text import in_one_line

LONGEST_LINE = 100
"""Characters of a source line that are shown."""

_BEFORE = 60


def error_lines(error: NipRunError) -> list[str]:
    """What a person is told: each problem of a spec is followed by its source line and a caret."""
    if not isinstance(error, SpecError):
        return error.lines()
    notes = error.lines()[len(error.problems) :]
    return [line for problem in error.problems for line in (str(problem), *_excerpt(problem.place))] + notes


def error_objects(error: NipRunError) -> list[dict[str, Any]]:
    """What a program is told: of a spec every problem with its place, of anything else what it is and what to do."""
    if isinstance(error, SpecError):
        return [_problem_object(problem) for problem in error.problems]
    if isinstance(error, QueryError):
        return [{**error_object(error.what, error.hint), "line": error.line, "column": error.column}]
    message, *notes = error.lines()
    what, step = split_message(message)
    return [error_object(what, "\n".join([*([step] if step else []), *notes]) or None)]


def error_object(message: str, hint: str | None) -> dict[str, Any]:
    """An error that is about no place in a file."""
    return {"file": None, "line": None, "column": None, "key": None, "message": message, "hint": hint}


def _problem_object(problem: Problem) -> dict[str, Any]:
    place = problem.place
    return {
        "file": place.file,
        "line": place.line,
        "column": place.column,
        "key": problem.key or None,
        "message": problem.what,
        "hint": problem.hint,
    }


def _excerpt(place: Place) -> Iterator[str]:
    """The line that a problem is about, and a caret below its column."""
    if place.source is None or not place.is_own or not place.source.strip():
        return
    column = min(place.column, len(place.source) + 1) - 1
    start = max(0, min(column - _BEFORE, len(place.source) - LONGEST_LINE)) if _is_long(place.source) else 0
    end = start + LONGEST_LINE
    before = ("..." if start else "") + in_one_line(place.source[start:column])
    after = in_one_line(place.source[column:end]) + ("..." if end < len(place.source) else "")
    number = str(place.line)
    yield f"  {number} | {before}{after}"
    yield f"  {' ' * len(number)} | {' ' * _width(before)}^"


def _is_long(line: str) -> bool:
    return len(line) > LONGEST_LINE


def _width(text: str) -> int:
    """The columns that a text takes in a terminal."""
    wide = sum(unicodedata.east_asian_width(character) in "WF" for character in text)
    return len(text) + wide - sum(map(bool, map(unicodedata.combining, text)))
