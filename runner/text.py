"""Text on its way to a person: made safe for a terminal, and nearest words for misspelt ones."""

from __future__ import annotations

import difflib
import unicodedata
from collections.abc import Iterable
from pathlib import PurePath

_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def escape_controls(text: str) -> str:
    """Show every control and invisible character as an escape, so that no model can drive a terminal."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c
        if c in "\n\t" or unicodedata.category(c) not in _HIDDEN
        else (f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}")
        for c in text
    )


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the known word that is most like this one, or nothing."""
    found = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def did_you_mean_file(name: str, known: Iterable[str]) -> str:
    """`did_you_mean` for names of files: their suffixes, which are alike whatever the files are, do not count."""
    stems = {PurePath(file).stem: file for file in known}
    found = difflib.get_close_matches(PurePath(name).stem, stems, n=1, cutoff=0.6)
    return f"; did you mean {stems[found[0]]!r}?" if found else ""


def comma_join(words: Iterable[str]) -> str:
    """`a, b, c`, for messages."""
    return ", ".join(map(str, words))
