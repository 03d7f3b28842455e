"""Explain YAML syntax errors: where the mistake is, what it is, and how to fix it.

A parser reports the place where it gave up. The mistake is often earlier: a quote or bracket that was never closed, or
a key without a colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from runner.documents.plain_values import MAX_DEPTH

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LINE_END = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff]")
TOO_DEEP = f"nested deeper than {MAX_DEPTH} levels; use fewer levels"
_MAX_QUOTED = 60
"""Maximum number of characters of a value that a message repeats."""
SECOND_COLON = "a second colon in one line"
_CLOSING_BRACKETS = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class YamlErrorExplanation:
    """A mistake in a YAML text; line and column count from 1."""

    message: str
    line: int
    column: int


def split_lines(text: str) -> list[str]:
    """Return the lines of a text, split where a YAML parser counts a new line."""
    return _LINE_END.split(text)


def explain_error(error: yaml.YAMLError, text: str, lines: list[str]) -> YamlErrorExplanation:
    """Return the most likely mistake in a text that the parser refused with `error`."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return _explain_control_character(error, lines)
    position = _Position(mark.line, mark.column, lines, str(getattr(error, "problem", "")))
    context = getattr(error, "context_mark", None)
    start = _Position(context.line, context.column, lines, str(getattr(error, "context", ""))) if context else position
    return (
        _explain_depth(position)
        or _explain_tab(position)
        or _explain_scalar(position, start)
        or _explain_colon(position, start)
        or _explain_unclosed(position, text)
        or _explain_indentation(position)
        or position.explain(
            f"not valid YAML: {position.problem}; put a text with : # [ {{ & * ! | > % @ ` in it in quotes"
        )
    )


@dataclass(frozen=True)
class _Position:
    """A position that the parser reported, with line and column counted from 0, and the parser's message there."""

    line: int
    column: int
    lines: list[str]
    problem: str

    @property
    def text(self) -> str:
        return self.lines[self.line] if self.line < len(self.lines) else ""

    @property
    def character(self) -> str:
        return self.text[self.column : self.column + 1]

    def explain(self, message: str) -> YamlErrorExplanation:
        return YamlErrorExplanation(message, self.line + 1, self.column + 1)


def _explain_control_character(error: yaml.YAMLError, lines: list[str]) -> YamlErrorExplanation:
    for number, line in enumerate(lines, 1):
        match = _CONTROL.search(line)
        if match:
            message = (
                f"a control character (U+{ord(match[0]):04X}); remove it, or write it as an escape in double quotes"
            )
            return YamlErrorExplanation(message, number, match.start() + 1)
    return YamlErrorExplanation(
        f"not valid YAML: {str(error).splitlines()[0]}; save the file as plain text in UTF-8", 1, 1
    )


def _explain_depth(position: _Position) -> YamlErrorExplanation | None:
    # From PyYAML 6.0.4 on, the parser refuses brackets nested 1,000 levels deep before it yields the first of them.
    return position.explain(TOO_DEEP) if "nesting depth" in position.problem else None


def _explain_tab(position: _Position) -> YamlErrorExplanation | None:
    indentation = position.text[: _indent(position.text)]
    if "\t" not in indentation or position.column > len(indentation):
        return None
    message = "a tab in the indentation; indent with spaces, two for each level"
    return YamlErrorExplanation(message, position.line + 1, indentation.index("\t") + 1)


def _explain_scalar(position: _Position, start: _Position) -> YamlErrorExplanation | None:
    """Explain a mistake inside one value."""
    if "end of stream" in position.problem and "quoted" in start.problem:
        return start.explain(f"the quote that opens here is not closed; add {start.character} where the text ends")
    if "escape character" in position.problem:
        return position.explain(
            "an unknown escape in double quotes; write \\\\ for a backslash, or put the text in single quotes"
        )
    if "cannot start any token" in position.problem:
        return position.explain(f"a text cannot begin with {position.character!r} here; put it in quotes")
    if "alphabetic or numeric character" in position.problem or "directive" in start.problem:
        return start.explain(f"a text cannot begin with {start.character!r} here; put it in quotes")
    if "comment or line break" in position.problem:
        return position.explain(
            f"text after {start.character}, which starts a block of lines; begin the text one line below"
        )
    return None


def _explain_colon(position: _Position, start: _Position) -> YamlErrorExplanation | None:
    """Explain missing or extra colons, and lists that begin on the line of their key."""
    if "could not find expected ':'" in position.problem:
        return _missing_colon(start)
    if "block sequence entries" in position.problem:
        return position.explain("a list item in the line of its key; begin the list in the next line, or write [A, B]")
    if "mapping values" not in position.problem:
        return None
    head = position.text[: position.column]
    key, colon, _ = head.partition(": ")
    if colon:
        value = position.text[len(key) + 2 :].strip()
        example = f'{key.strip()}: "{value}"' if '"' not in value and len(value) <= _MAX_QUOTED else 'KEY: "..."'
        return position.explain(f"{SECOND_COLON}; put the value in quotes: {example}")
    above = _line_above(position)
    if above is None:
        return None
    if ": " in above.text or above.text.rstrip().endswith(":"):
        indent = _indent(position.text)
        message = (
            f"the line is indented deeper ({indent}) than line {above.line + 1} ({above.column}), which already has a "
            f"value; give both lines the same indentation, or move the value of line {above.line + 1}"
        )
        return YamlErrorExplanation(message, position.line + 1, indent + 1)
    return _missing_colon(above)


def _missing_colon(position: _Position) -> YamlErrorExplanation:
    _, colon, _ = position.text.partition(":")
    step = "put a space after the colon: KEY: VALUE" if colon else "write KEY: VALUE"
    return position.explain(f"no ': ' after the key; {step}")


def _explain_unclosed(position: _Position, text: str) -> YamlErrorExplanation | None:
    """Explain quotes and brackets that were opened before the place where the parser gave up."""
    open_brackets: list[yaml.Mark] = []
    last: Any = None
    for token in _tokens(text):
        if (token.start_mark.line, token.start_mark.column) >= (position.line, position.column):
            break
        if isinstance(token, (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken)):
            open_brackets.append(token.start_mark)
        elif isinstance(token, (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)) and open_brackets:
            open_brackets.pop()
        last = token
    if isinstance(last, yaml.ScalarToken) and last.style in ("'", '"') and last.end_mark.line == position.line:
        return _explain_after_quote(position, last)
    if not open_brackets or (
        "expected ','" not in position.problem and "expected node content" not in position.problem
    ):
        return None
    opener = _Position(open_brackets[-1].line, open_brackets[-1].column, position.lines, "")
    closing = _CLOSING_BRACKETS[opener.character]
    if position.character and position.character in "]}" and position.character != closing:
        return position.explain(
            f"{position.character} cannot close the {opener.character} of line {opener.line + 1}; write {closing}"
        )
    if position.line > opener.line:
        return opener.explain(f"the {opener.character} that opens here is not closed; add {closing} where it ends")
    return position.explain(
        f"a comma or {closing} is missing here; separate entries by commas, and put texts with : , [ ] {{ }} in quotes"
    )


def _explain_after_quote(position: _Position, quoted: Any) -> YamlErrorExplanation:
    start = _Position(quoted.start_mark.line, quoted.start_mark.column, position.lines, "")
    if start.line != position.line:
        return start.explain(
            f"the quote that opens here is closed only in line {position.line + 1}; add {quoted.style} where the text "
            "ends"
        )
    inner = "write '' for one ' in a text" if quoted.style == "'" else 'write \\" for one " in a text'
    return position.explain(f"text after the closing quote; {inner}, or put the whole value in quotes")


def _tokens(text: str) -> Iterator[Any]:
    """Yield the tokens up to the first one that cannot be read."""
    try:
        yield from yaml.scan(text, Loader=_Loader)
    except yaml.YAMLError:
        return


def _explain_indentation(position: _Position) -> YamlErrorExplanation | None:
    if position.column > _indent(position.text) or "did not find expected" not in position.problem:
        return None
    if "'-' indicator" in position.problem and position.column == 0:
        return position.explain("a KEY: VALUE line after the items of a list; give the list a key of its own")
    above = _line_above(position)
    line = (
        ""
        if above is None
        else f"; all lines of a mapping or list need the same indentation, and line {above.line + 1} has {above.column}"
    )
    return position.explain(f"the indentation ({position.column}) matches no line above{line}")


def _line_above(position: _Position) -> _Position | None:
    """Return the start of the nearest line above that is neither empty nor a comment; None if there is none."""
    for number in range(min(position.line, len(position.lines)) - 1, -1, -1):
        line = position.lines[number]
        if line.strip() and not line.lstrip().startswith("#"):
            return _Position(number, _indent(line), position.lines, "")
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
