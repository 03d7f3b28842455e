"""What a YAML parser says of a text it cannot read, in plain words: where the mistake is, what it is, what to do.

A parser reports the place where it gave up. The mistake is often before that: the quote or the bracket that was never
closed, the key without a colon.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_LINE_END = re.compile("\r\n|[\r\n\x85\u2028\u2029]")
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\x80-\x84\x86-\x9f\ufffe\uffff]")
_QUOTED_MAX = 60
SECOND_COLON = "a second colon in one line"
_PAIRS = {"[": "]", "{": "}"}


@dataclass(frozen=True)
class YamlErrorExplanation:
    """A mistake in a YAML text; line and column count from 1."""

    message: str
    line: int
    column: int


def lines_of(text: str) -> list[str]:
    """A text's lines as a YAML parser counts them."""
    return _LINE_END.split(text)


def explained(error: yaml.YAMLError, text: str, lines: list[str]) -> YamlErrorExplanation:
    """What is wrong with a text that the parser refused."""
    mark = getattr(error, "problem_mark", None)
    if mark is None:
        return _control(error, lines)
    where = _Where(mark.line, mark.column, lines, str(getattr(error, "problem", "")))
    context = getattr(error, "context_mark", None)
    start = _Where(context.line, context.column, lines, str(getattr(error, "context", ""))) if context else where
    return (
        _tab(where)
        or _scalar(where, start)
        or _colon(where, start)
        or _unclosed(where, text)
        or _indentation(where)
        or where.told(f"not valid YAML: {where.said}; put a text with : # [ {{ & * ! | > % @ ` in it in quotes")
    )


@dataclass(frozen=True)
class _Where:
    """A mark of the parser, from 0, and what it says there."""

    line: int
    column: int
    lines: list[str]
    said: str

    @property
    def text(self) -> str:
        return self.lines[self.line] if self.line < len(self.lines) else ""

    @property
    def character(self) -> str:
        return self.text[self.column : self.column + 1]

    def told(self, message: str) -> YamlErrorExplanation:
        return YamlErrorExplanation(message, self.line + 1, self.column + 1)


def _control(error: yaml.YAMLError, lines: list[str]) -> YamlErrorExplanation:
    for number, line in enumerate(lines, 1):
        found = _CONTROL.search(line)
        if found:
            message = (
                f"a control character (U+{ord(found[0]):04X}); remove it, or write it as an escape in double quotes"
            )
            return YamlErrorExplanation(message, number, found.start() + 1)
    return YamlErrorExplanation(
        f"not valid YAML: {str(error).splitlines()[0]}; save the file as plain text in UTF-8", 1, 1
    )


def _tab(where: _Where) -> YamlErrorExplanation | None:
    indentation = where.text[: _indent(where.text)]
    if "\t" not in indentation or where.column > len(indentation):
        return None
    message = "a tab in the indentation; indent with spaces, two for each level"
    return YamlErrorExplanation(message, where.line + 1, indentation.index("\t") + 1)


def _scalar(where: _Where, start: _Where) -> YamlErrorExplanation | None:
    """A mistake within one value."""
    if "end of stream" in where.said and "quoted" in start.said:
        return start.told(f"the quote that opens here is not closed; add {start.character} where the text ends")
    if "escape character" in where.said:
        return where.told(
            "an unknown escape in double quotes; write \\\\ for a backslash, or put the text in single quotes"
        )
    if "cannot start any token" in where.said:
        return where.told(f"a text cannot begin with {where.character!r} here; put it in quotes")
    if "alphabetic or numeric character" in where.said or "directive" in start.said:
        return start.told(f"a text cannot begin with {start.character!r} here; put it in quotes")
    if "comment or line break" in where.said:
        return where.told(f"text after {start.character}; it begins a text in the lines below, so begin it there")
    return None


def _colon(where: _Where, start: _Where) -> YamlErrorExplanation | None:
    """Colons that are too many or missing, and lists that begin in the line of their key."""
    if "could not find expected ':'" in where.said:
        return _no_colon(start)
    if "block sequence entries" in where.said:
        return where.told("a list item in the line of its key; begin the list in the next line, or write [A, B]")
    if "mapping values" not in where.said:
        return None
    head = where.text[: where.column]
    key, colon, _ = head.partition(": ")
    if colon:
        value = where.text[len(key) + 2 :].strip()
        example = f'{key.strip()}: "{value}"' if '"' not in value and len(value) <= _QUOTED_MAX else 'KEY: "..."'
        return where.told(f"{SECOND_COLON}; put the value in quotes: {example}")
    above = _above(where)
    if above is None:
        return None
    if ": " in above.text or above.text.rstrip().endswith(":"):
        indent = _indent(where.text)
        message = (
            f"the line is indented deeper ({indent}) than line {above.line + 1} ({above.column}), which has a value "
            "already; give both the same indentation, or move that value"
        )
        return YamlErrorExplanation(message, where.line + 1, indent + 1)
    return _no_colon(above)


def _no_colon(where: _Where) -> YamlErrorExplanation:
    _, colon, _ = where.text.partition(":")
    step = "put a space after the colon: KEY: VALUE" if colon else "write KEY: VALUE"
    return where.told(f"no ': ' after the key; {step}")


def _unclosed(where: _Where, text: str) -> YamlErrorExplanation | None:
    """Quotes and brackets that were opened before the place where the parser gave up."""
    opened: list[yaml.Mark] = []
    last: Any = None
    for token in _tokens(text):
        if (token.start_mark.line, token.start_mark.column) >= (where.line, where.column):
            break
        if isinstance(token, (yaml.FlowSequenceStartToken, yaml.FlowMappingStartToken)):
            opened.append(token.start_mark)
        elif isinstance(token, (yaml.FlowSequenceEndToken, yaml.FlowMappingEndToken)) and opened:
            opened.pop()
        last = token
    if isinstance(last, yaml.ScalarToken) and last.style in ("'", '"') and last.end_mark.line == where.line:
        return _after_quote(where, last)
    if not opened or ("expected ','" not in where.said and "expected node content" not in where.said):
        return None
    opener = _Where(opened[-1].line, opened[-1].column, where.lines, "")
    closes = _PAIRS[opener.character]
    if where.character and where.character in "]}" and where.character != closes:
        return where.told(
            f"{where.character} cannot close the {opener.character} of line {opener.line + 1}; write {closes}"
        )
    if where.line > opener.line:
        return opener.told(f"the {opener.character} that opens here is not closed; add {closes} where it ends")
    return where.told(
        f"a comma or {closes} is missing here; separate entries by commas, and put texts with : , [ ] {{ }} in quotes"
    )


def _after_quote(where: _Where, quoted: Any) -> YamlErrorExplanation:
    begins = _Where(quoted.start_mark.line, quoted.start_mark.column, where.lines, "")
    if begins.line != where.line:
        return begins.told(
            f"the quote that opens here is closed only in line {where.line + 1}; add {quoted.style} where the text ends"
        )
    inner = "write '' for one ' in a text" if quoted.style == "'" else 'write \\" for one " in a text'
    return where.told(f"text after the closing quote; {inner}, or put the whole value in quotes")


def _tokens(text: str) -> Iterator[Any]:
    """The tokens up to the first that cannot be read."""
    try:
        yield from yaml.scan(text, Loader=_Loader)
    except yaml.YAMLError:
        return


def _indentation(where: _Where) -> YamlErrorExplanation | None:
    if where.column > _indent(where.text) or "did not find expected" not in where.said:
        return None
    if "'-' indicator" in where.said and where.column == 0:
        return where.told("a KEY: VALUE line after the items of a list; give the list a key of its own")
    above = _above(where)
    line = (
        ""
        if above is None
        else (f"; lines of one mapping or list have the same indentation, line {above.line + 1} has {above.column}")
    )
    return where.told(f"the indentation ({where.column}) matches no line above it{line}")


def _above(where: _Where) -> _Where | None:
    """The nearest line above with something on it, at its first character."""
    for number in range(min(where.line, len(where.lines)) - 1, -1, -1):
        line = where.lines[number]
        if line.strip() and not line.lstrip().startswith("#"):
            return _Where(number, _indent(line), where.lines, "")
    return None


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t"))
