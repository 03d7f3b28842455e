"""Transform the rows of a dataset: strip comments, normalize formatting, truncate, rename and join columns."""

from __future__ import annotations

import re
import tokenize
from collections.abc import Callable, Iterator, Mapping, Sequence
from io import StringIO
from typing import Any, Final

from runner.base.errors import SpecError
from runner.base.problems import PlaceOf, Problem
from runner.base.text import comma_join, did_you_mean, list_some
from runner.spec.datasets.explode import ROW_NUMBER, Row
from runner.spec.datasets.settings import TransformStep

_KEY: Final = "dataset.transform"
_OPTIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "strip_comments": ("language",),
    "normalize": (),
    "truncate": ("characters",),
    "rename": ("into",),
    "join": ("into", "separator"),
}
"""The options of each step, without `columns`. All except `separator` are required."""
_FIXED_COLUMNS: Final = ("id", "label")
_C_COMMENT_OR_QUOTE = re.compile(
    r"""//[^\n]*|/\*.*?(?:\*/|\Z)|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`""", re.DOTALL
)
_TABS_IN_INDENTATION = re.compile(r"^[ \t]*\t[ \t]*", re.MULTILINE)


def transform_rows(
    rows: list[Row], columns: Sequence[str], steps: Sequence[TransformStep], place_of: PlaceOf
) -> tuple[list[Row], tuple[str, ...]]:
    """Return the rows after all steps, and their columns.

    Raises:
        SpecError: a step has wrong options or names a wrong column, or a value cannot be transformed; lists the rows.
    """
    for number, step in enumerate(steps, 1):
        if messages := [*_step_problems(step, columns)]:
            raise SpecError([Problem(place_of(_KEY), _KEY, f"step {number}, {message}") for message in messages])
        failures: dict[str, list[int]] = {}
        rows = [_transform_row(row, step, failures) for row in rows]
        if failures:
            messages = [f"{reason}, in rows {list_some(numbers)}" for reason, numbers in failures.items()]
            raise SpecError([Problem(place_of(_KEY), _KEY, f"step {number}, {message}") for message in messages])
        columns = _columns_after(columns, step)
    return rows, tuple(columns)


def _step_problems(step: TransformStep, columns: Sequence[str]) -> Iterator[str]:
    """Yield messages about wrong options and columns of a step."""
    for name in ("language", "characters", "into", "separator"):
        is_set, is_allowed = getattr(step, name) is not None, name in _OPTIONS[step.step]
        if is_set and not is_allowed:
            yield f"{step.step}: remove {name}, which this step does not have"
        if is_allowed and not is_set and name != "separator":
            yield f"{step.step}: set {name}"
    if step.step == "rename" and len(step.columns) != 1:
        yield "rename: name one column; write a step for each column"
    for name in step.columns:
        if name in _FIXED_COLUMNS:
            yield f"{step.step}: the column {name!r} cannot be transformed; use dataset.columns and dataset.labels"
        elif name not in columns:
            hint = did_you_mean(name, columns) or "; choose one of " + comma_join(columns)
            yield f"{step.step}: no column {name!r}{hint}"
    if step.into is not None and step.into in {*columns, *_FIXED_COLUMNS} - {*step.columns}:
        yield f"{step.step}: there already is a column {step.into!r}; choose another name for into"


def _columns_after(columns: Sequence[str], step: TransformStep) -> Sequence[str]:
    if step.into is None:
        return columns
    return [step.into if name == step.columns[0] else name for name in columns if name not in step.columns[1:]]


class _Untransformable(Exception):
    """Raised if a value cannot be transformed. The message is the reason."""


def _transform_row(row: Row, step: TransformStep, failures: dict[str, list[int]]) -> Row:
    """Return the row after a step; if a value cannot be transformed, add the row to `failures` by the reason."""
    try:
        if step.into is None:
            function = _text_function(step)
            return {**row, **{name: _transform_text(row[name], name, function) for name in step.columns}}
        unchanged = {name: value for name, value in row.items() if name not in step.columns}
        return {**unchanged, step.into: _join(row, step) if step.step == "join" else row[step.columns[0]]}
    except _Untransformable as problem:
        failures.setdefault(f"{step.step}: {problem}", []).append(row[ROW_NUMBER])
        return row


def _text_function(step: TransformStep) -> Callable[[str], str]:
    if step.step == "truncate":
        return lambda text: text[: step.characters]
    if step.step == "normalize":
        return normalize_formatting
    return strip_python_comments if step.language == "python" else strip_c_comments


def _transform_text(value: Any, name: str, function: Callable[[str], str]) -> Any:
    if value is None:
        return None
    if not isinstance(value, str):
        raise _Untransformable(f"column {name!r} must have texts")
    try:
        return function(value)
    except (tokenize.TokenError, SyntaxError) as error:
        raise _Untransformable(f"column {name!r} is not Python 3; leave these rows out with dataset.filter") from error


def _join(row: Row, step: TransformStep) -> str:
    values = [row[name] for name in step.columns if row[name] is not None]
    if any(isinstance(value, (list, dict)) for value in values):
        raise _Untransformable("the columns must have texts or numbers")
    return ("\n\n" if step.separator is None else step.separator).join(map(str, values))


def strip_python_comments(code: str) -> str:
    """Remove comments, and the lines that only have a comment. Docstrings stay.

    Raises:
        tokenize.TokenError: the code is not Python 3.
        SyntaxError: the same.
    """
    lines = code.split("\n")
    comment_lines = set()
    for token in tokenize.generate_tokens(StringIO(code).readline):
        # Since Python 3.12, characters such as `?` are not error tokens, but operators of no known kind.
        is_unknown = token.exact_type in (tokenize.ERRORTOKEN, tokenize.OP)
        if is_unknown and not token.string.isspace():
            raise SyntaxError(token.string)
        if token.type == tokenize.COMMENT:
            index, column = token.start[0] - 1, token.start[1]
            lines[index] = lines[index][:column].rstrip()
            comment_lines |= set() if lines[index] else {index}
    return "\n".join(line for index, line in enumerate(lines) if index not in comment_lines)


def strip_c_comments(code: str) -> str:
    """Remove `// ...` and `/* ... */` outside quotes, and the lines that only have such a comment."""
    mark = "\0"
    marked = _C_COMMENT_OR_QUOTE.sub(lambda match: mark if match[0].startswith("/") else match[0], code)
    lines = [line for line in marked.split("\n") if mark not in line or line.replace(mark, "").strip()]
    return "\n".join(line.replace(mark, " ").rstrip() if mark in line else line for line in lines)


def normalize_formatting(text: str) -> str:
    r"""Return a text with `\n` as line end, four spaces for a tab in indentation, and single blank lines.

    White space at the ends of lines, and blank lines at the start and end, are removed.
    """
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    text = _TABS_IN_INDENTATION.sub(lambda match: match[0].expandtabs(4), text)
    text = "\n".join(line.rstrip() for line in text.split("\n"))
    return re.sub(r"\n{3,}", "\n\n", text).strip("\n")
