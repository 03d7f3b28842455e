"""Text in the width of a terminal: words stay whole, code keeps its indentation."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from runner.base.text import escape_controls

_WORD = re.compile(r"\S+\s*")
_TAB = 8


def wrapped(text: str, width: int | None, indent: str = "") -> Iterator[str]:
    """The lines of a text, each behind `indent`.

    A line that is wider is broken between words, and goes on under its own first character; a word that is wider stays
    whole. `width` is None where nothing is broken.
    """
    for line in escape_controls(text).split("\n"):
        if width is None or cells(line) <= width - len(indent):
            yield indent + line if line else indent.rstrip()
        else:
            yield from (indent + part for part in _broken(line, width - len(indent)))


def cells(text: str) -> int:
    """The columns that a text takes in a terminal, a tab as many as it may."""
    if text.isascii():
        return len(text) + text.count("\t") * (_TAB - 1)
    return sum(
        _TAB if c == "\t" else 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1
        for c in text
    )


def _broken(line: str, width: int) -> Iterator[str]:
    words = line.lstrip()
    lead = line[: len(line) - len(words)]
    if cells(lead) > width // 2:
        lead = ""
    part, taken = lead, cells(lead)
    empty = True
    for word in _WORD.findall(words):
        if not empty and taken + cells(word.rstrip()) > width:
            yield part.rstrip()
            part, taken = lead, cells(lead)
        part += word
        taken += cells(word)
        empty = False
    yield part.rstrip()
