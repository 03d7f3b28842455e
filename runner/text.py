"""Text on its way to a person: made safe for a terminal, and nearest words for misspelt ones."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from pathlib import PurePath

_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


class _Escapes(dict[int, str]):
    """What each character is shown as; known once it was asked for."""

    def __missing__(self, code: int) -> str:
        shown = chr(code)
        if shown not in "\n\t" and unicodedata.category(shown) in _HIDDEN:
            shown = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        self[code] = shown
        return shown


_ESCAPES = _Escapes()


def escape_controls(text: str) -> str:
    """Show every control and invisible character as an escape, so that no text can drive a terminal."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def in_one_line(text: str) -> str:
    """`escape_controls` with line ends and tabs shown too, for what must not look like lines of ours."""
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def shortened(text: str, most: int = 80) -> str:
    """The beginning of a text that may be of any length, for messages."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def not_text(text: str) -> str | None:
    """Why a text cannot be written: it has half of a surrogate pair, as a command line that is not UTF-8 gives."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return (
            f"character {error.start + 1} is half of a pair (U+{ord(text[error.start]):04X}), which UTF-8 cannot hold"
        )
    return None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?` with the known word that is most like this one, or nothing."""
    import difflib  # here and not above: help has no use for it

    found = difflib.get_close_matches(str(word), [str(one) for one in known], n=1, cutoff=0.6)
    return f"; did you mean {found[0]!r}?" if found else ""


def did_you_mean_file(name: str, known: Iterable[str]) -> str:
    """`did_you_mean` for names of files: their suffixes, which are alike whatever the files are, do not count."""
    import difflib

    stems = {PurePath(file).stem: file for file in known}
    found = difflib.get_close_matches(PurePath(name).stem, stems, n=1, cutoff=0.65)
    return f"; did you mean {stems[found[0]]!r}?" if found else ""


def counted(number: int, what: str) -> str:
    """`1 round`, `2 rounds`."""
    return f"{number} {what}{'' if number == 1 else 's'}"


def with_interval(value: float | None, low: float | None, high: float | None) -> str:
    """`0.71 [0.62, 0.79]`."""
    if value is None:
        return "-"
    return f"{value:.3f}" + ("" if low is None or high is None else f" [{low:.3f}, {high:.3f}]")


def comma_join(words: Iterable[str]) -> str:
    """`a, b, c`, for messages."""
    return ", ".join(map(str, words))


_FORMULA = re.compile(r"[\s\0]*[=+\-@\t\r]")


def csv_text(text: str) -> str:
    """A text for a cell of CSV: one that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text
