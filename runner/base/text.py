"""Text on its way to a person: made safe for a terminal, and nearest words for misspelt ones."""

from __future__ import annotations

import math
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


NOT_ESTIMABLE = "not estimable"
"""Stands for a number that is infinite or undefined, such as the open end of an interval."""


def decimal(value: float | None, places: int = 3, none: str = "-") -> str:
    """Round a number for people: `0.710`, and never `-0.000`."""
    if value is None:
        return none
    return f"{value:z.{places}f}" if math.isfinite(value) else NOT_ESTIMABLE


def interval_ends(low: float | None, high: float | None, places: int = 3) -> tuple[str, str] | None:
    """Round both ends of an interval; None if there is no interval. A missing end alone is not estimable."""
    if low is None and high is None:
        return None
    return decimal(low, places, NOT_ESTIMABLE), decimal(high, places, NOT_ESTIMABLE)


def with_interval(value: float | None, low: float | None, high: float | None, places: int = 3, none: str = "-") -> str:
    """`0.710 [0.620, 0.790]`."""
    ends = None if value is None else interval_ends(low, high, places)
    return decimal(value, places, none) + ("" if ends is None else f" [{', '.join(ends)}]")


def p_value(p: float | None, none: str = "-") -> str:
    """`0.0421`, or `<0.0001`."""
    return "<0.0001" if p is not None and p < 1e-4 else decimal(p, 4, none)


_LEAST_COST = 0.0001


def dollars(cost: float | None) -> str:
    """`$1.34`, `$0.098`: two figures that count."""
    if cost is None or not math.isfinite(cost):
        return "–"
    if cost >= 1 or cost == 0:
        return f"${cost:,.2f}"
    return f"${cost:#.2g}" if cost >= _LEAST_COST else f"<${_LEAST_COST}"


def dollar_range(cost: tuple[float, float] | None) -> str:
    """`$1.34 to $2.10`."""
    return "unknown (no price)" if cost is None else f"{dollars(cost[0])} to {dollars(cost[1])}"


def comma_join(words: Iterable[str]) -> str:
    """`a, b, c`, for messages."""
    return ", ".join(map(str, words))


_FORMULA = re.compile(r"[\s\0]*[=+\-@\t\r]")


def csv_text(text: str) -> str:
    """A text for a cell of CSV: one that a spreadsheet would take for a formula begins with an apostrophe."""
    return f"'{text}" if _FORMULA.match(text) else text
