"""Words of others in Markdown: shown as they are, and never as markup, a link or HTML."""

from __future__ import annotations

import re

from runner.base.text import in_one_line


def code(text: str) -> str:
    """A text in one line as code: between more backticks than it holds in a row."""
    shown = in_one_line(text) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall(r"`+", shown)), default=0))
    pad = " " if shown[0] == "`" or shown[-1] == "`" else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def cell(text: str) -> str:
    """`code` in a table, where a line would part cells even there."""
    return code(text).replace("|", "\\|")


def plain(text: str) -> str:
    """A text in one line, with an escape before each sign that Markdown takes for its own where it stands.

    Dashes, dots and colons it takes for nothing within a line, but for those of an address, which would be a link.
    """
    shown = re.sub(r"([\\`*{}\[\]<>#+!|~&@]|(?<=\])\(|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))", r"\\\1", in_one_line(text))
    shown = re.sub(r"(?i)(https?|ftp|mailto|xmpp|www)([:.])", r"\1\\\2", shown)
    shown = re.sub(r"^(\s*\d+)([.)])", r"\1\\\2", shown)  # a numbered list
    return re.sub(r"^(\s*)([-=:])", r"\1\\\2", shown)  # a list, a rule, a heading


def prose(text: str) -> str:
    """`plain` of a sentence: signs that are no markup within a line, such as its full stops, stay as they are."""
    return re.sub(r"([\\`*_{}\[\]<>#!|~&@]|(?<=\])\()", r"\\\1", in_one_line(text)).replace("//", "/\\/")
