"""Wrap text to the width of a terminal, without breaking words. Wrapped lines keep the indentation of code."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from runner.base.text import escape_controls

_WORD_PATTERN = re.compile(r"\S+\s*")
_TAB = 8


def wrap_lines(text: str, width: int | None, indent: str = "") -> Iterator[str]:
    """Yield the lines of a text, each with `indent` before it.

    A line that is too wide is wrapped between words, and all its parts are indented as the line is. A word that is too
    wide is not broken. If `width` is None, nothing is wrapped.
    """
    for line in escape_controls(text).split("\n"):
        if width is None or display_width(line) <= width - len(indent):
            yield indent + line if line else indent.rstrip()
        else:
            yield from (indent + part for part in _break_line(line, width - len(indent)))


def display_width(text: str) -> int:
    """Return the number of terminal columns that a text takes; a tab counts as its maximum width."""
    if text.isascii():
        return len(text) + text.count("\t") * (_TAB - 1)
    return sum(
        _TAB if c == "\t" else 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _break_line(line: str, width: int) -> Iterator[str]:
    text = line.lstrip()
    indentation = line[: len(line) - len(text)]
    if display_width(indentation) > width // 2:
        indentation = ""
    part = indentation
    for word in _WORD_PATTERN.findall(text):
        if part != indentation and display_width(part + word.rstrip()) > width:
            yield part.rstrip()
            part = indentation
        part += word
    yield part.rstrip()
