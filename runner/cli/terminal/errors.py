"""Convert errors to lines for people, with the source line of each problem, and to JSON objects for programs."""

from __future__ import annotations

from collections.abc import Iterator

from runner.base.errors import NipRunError, QueryError, SpecError
from runner.base.problems import Place, Problem, split_message
from runner.base.redaction import redacted
from runner.base.text import in_one_line
from runner.cli.terminal.wrapping import display_width

MAX_EXCERPT = 100
"""Maximum number of characters of a source line that are printed."""

MAX_EXCERPT_BEFORE = 60
"""Maximum number of these characters that are before the mistake."""


def error_lines(error: NipRunError) -> list[str]:
    """Return the lines that describe an error; each problem of a spec is followed by its source line and a caret."""
    if not isinstance(error, SpecError):
        return error.lines()
    notes = error.lines()[len(error.problems) :]
    return [line for problem in error.problems for line in (str(problem), *_excerpt_lines(problem.place))] + notes


def error_objects(error: NipRunError) -> list[dict[str, object]]:
    """Return an error as JSON objects: one for each problem of a spec, or one with the message and the next step."""
    if isinstance(error, SpecError):
        return [_problem_object(problem) for problem in error.problems]
    if isinstance(error, QueryError):
        return [{**error_object(error.what, error.hint), "line": error.line, "column": error.column}]
    message, *notes = error.lines()
    problem, next_step = split_message(message)
    return [error_object(problem, "\n".join([*([next_step] if next_step else []), *notes]) or None)]


def error_object(message: str, hint: str | None) -> dict[str, object]:
    """Return the JSON object of an error that has no position in a file."""
    return {"file": None, "line": None, "column": None, "key": None, "message": message, "hint": hint}


def _problem_object(problem: Problem) -> dict[str, object]:
    place = problem.place
    position = {"file": place.file, "line": place.line, "column": place.column, "key": problem.key or None}
    return error_object(problem.what, problem.hint) | position


def _excerpt_lines(place: Place) -> Iterator[str]:
    """Yield the source line of a problem, and a caret below its column."""
    if place.source is None or not place.is_own or not place.source.strip():
        return
    column = min(place.column, len(place.source) + 1) - 1
    # Redacted first, because part of a secret would not be found.
    head, tail = redacted(place.source[:column]), redacted(place.source[column:])
    start = max(0, min(len(head) - MAX_EXCERPT_BEFORE, len(head + tail) - MAX_EXCERPT))
    end = start + MAX_EXCERPT - len(head)
    before = ("..." if start else "") + in_one_line(head[start:])
    after = in_one_line(tail[:end]) + ("..." if end < len(tail) else "")
    number = str(place.line)
    yield f"  {number} | {before}{after}"
    yield f"  {' ' * len(number)} | {' ' * display_width(before)}^"
