"""Escape untrusted text in the READMEs of releases, so that it never becomes markup, a link or HTML."""

from __future__ import annotations

import re

from runner.base.text import in_one_line


def as_code(text: str) -> str:
    """Return a text as inline code on one line, between more backticks than the text has in a row."""
    line = in_one_line(text) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", line)), default=0))
    pad = " " if line[0] == "`" or line[-1] == "`" else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def as_cell(text: str) -> str:
    """Return a text as inline code for a cell of a table, where a `|` would end the cell, even in code."""
    return as_code(text).replace("|", "\\|")


def escape_line(text: str) -> str:
    """Return a text on one line, and escape each character that Markdown would interpret at its position.

    Dashes, dots and colons inside a line are only escaped in addresses, which would become links.
    """
    line = re.sub(r"([\\`*{}\[\]<>#+!|~&@]|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", in_one_line(text))
    line = re.sub(r"(?i)(https?|ftp|mailto|xmpp|www)([:.])", r"\1\\\2", line)
    line = re.sub(r"^(\s*\d+)([.)])", r"\1\\\2", line)  # a numbered list
    return re.sub(r"^(\s*)([-=:])", r"\1\\\2", line)  # a list, a rule, a heading


def escape_inline(text: str) -> str:
    """Return a text for the middle of a line, with only the escapes that are needed there."""
    return re.sub(r"([\\`*_{}\[\]<>#!|~&@]|(?<=\])\()", r"\\\1", in_one_line(text)).replace("//", "/\\/")
