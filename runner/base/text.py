"""Format text for people: escapes for terminals and CSV, suggestions for misspelled words, and rounded numbers."""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path  # help need not import it

HIDDEN_CATEGORIES = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
"""Unicode categories of characters that are invisible or change the direction of text."""


class _Escapes(dict[int, str]):
    """A cache from each character to its visible form."""

    def __missing__(self, code: int) -> str:
        visible = chr(code)
        if visible not in "\n\t" and unicodedata.category(visible) in HIDDEN_CATEGORIES:
            visible = f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
        self[code] = visible
        return visible


_ESCAPES = _Escapes()


def escape_controls(text: str) -> str:
    """Replace control and invisible characters with escape sequences, because raw ones could drive a terminal."""
    return text if text.isascii() and text.isprintable() else text.translate(_ESCAPES)


def path_argument(path: Path) -> str:
    """Return a path as an argument of a printed command, where no program reads it as an option."""
    return f"./{path}" if str(path).startswith("-") else str(path)


def in_one_line(text: str) -> str:
    """Escape control characters, line ends and tabs, so that untrusted text cannot imitate lines of nip-run."""
    return escape_controls(text).replace("\n", "\\n").replace("\t", "\\t")


def shortened(text: str, most: int = 80) -> str:
    """Truncate a text for a message."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def encoding_problem(text: str) -> str | None:
    """Return a message if UTF-8 cannot encode the text, such as some command-line arguments; else None."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = f"U+{ord(text[error.start]):04X}"
        return (
            f"character {error.start + 1} ({half}) is half of a surrogate pair, which UTF-8 cannot encode; remove the "
            "character"
        )
    return None


def did_you_mean(misspelled: str, candidates: Iterable[str]) -> str:
    """Return `; did you mean 'x'?` with the most similar candidate, or an empty string. Case does not matter."""
    import difflib  # imported here because `--help` does not need it

    spellings = {str(candidate).casefold(): str(candidate) for candidate in candidates}
    matches = difflib.get_close_matches(str(misspelled).casefold(), spellings, n=1, cutoff=0.6)
    return f"; did you mean {spellings[matches[0]]!r}?" if matches else ""


def did_you_mean_file(name: str, candidates: Iterable[str]) -> str:
    """Return a hint as `did_you_mean` does, ignoring suffixes, because all candidates have the same."""
    import difflib
    from pathlib import PurePath

    stems = {PurePath(file).stem: file for file in candidates}
    matches = difflib.get_close_matches(PurePath(name).stem, stems, n=1, cutoff=0.65)
    return f"; did you mean {stems[matches[0]]!r}?" if matches else ""


def counted(number: int, noun: str) -> str:
    """Format a count with its noun: `1 round`, `2 rounds`."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


_ROUNDING_ERROR = 1e-9
"""A number that is as small as this is shown as 0."""
NOT_ESTIMABLE = "not estimable"
"""Printed for a number that is infinite or undefined, such as the open end of an interval."""


def decimal(value: float | None, places: int = 3, none: str = "-") -> str:
    """Round a number for people: `0.710`, and never `-0.000`."""
    if value is None:
        return none
    return f"{value:z.{places}f}" if math.isfinite(value) else NOT_ESTIMABLE


def interval_ends(low: float | None, high: float | None, places: int = 3) -> tuple[str, str] | None:
    """Round both ends of an interval; None if both are missing. A single missing end becomes `not estimable`."""
    if low is None and high is None:
        return None
    return decimal(low, places, NOT_ESTIMABLE), decimal(high, places, NOT_ESTIMABLE)


def decimal_places(value: float | None, low: float | None, high: float | None) -> int:
    """Return the number of decimals for a value with its interval: 3, or more for a narrow interval or a small value.

    Half the width of the interval, or the value if it has no interval, gets two significant digits.
    """
    size = abs(value or 0.0) if low is None or high is None else (high - low) / 2
    return 1 - math.floor(math.log10(size)) if _ROUNDING_ERROR < size < 0.001 else 3


def with_interval(
    value: float | None, low: float | None, high: float | None, places: int | None = None, none: str = "-"
) -> str:
    """Format a value with its interval: `0.710 [0.620, 0.790]`. By default, `decimal_places` sets the decimals."""
    places = decimal_places(value, low, high) if places is None else places
    ends = None if value is None else interval_ends(low, high, places)
    return decimal(value, places, none) + ("" if ends is None else f" [{', '.join(ends)}]")


def p_value(p: float | None, none: str = "-") -> str:
    """Format a p-value: `0.0421`, or `<0.0001`."""
    return "<0.0001" if p is not None and p < 1e-4 else decimal(p, 4, none)


def p_statement(p: float) -> str:
    """Format a p-value with its sign: `p = 0.0421`, or `p < 0.0001`."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p_value(p)}"


_LEAST_COST = 0.0001


def dollars(cost: float | None) -> str:
    """Format a cost with two significant figures below a dollar: `$1.34`, `$0.098`."""
    if cost is None or not math.isfinite(cost):
        return "–"
    if cost >= 1 or cost == 0:
        return f"${cost:,.2f}"
    return f"${cost:#.2g}" if cost >= _LEAST_COST else f"<${_LEAST_COST}"


def dollar_range(cost: tuple[float, float] | None) -> str:
    """Format the lowest and highest cost: `$1.34 to $2.10`."""
    return "unknown (no price)" if cost is None else f"{dollars(cost[0])} to {dollars(cost[1])}"


def comma_join(items: Iterable[str]) -> str:
    """Join items for a message: `a, b, c`."""
    return ", ".join(map(str, items))


def list_some(items: Sequence[object], limit: int = 5) -> str:
    """Return `a, b and 3 more`: at most `limit` items, for messages."""
    hidden = len(items) - limit
    return ", ".join(map(str, items[:limit])) + (f" and {hidden} more" if hidden > 0 else "")


_FORMULA = re.compile(r"[\s\0]*[=+\-@\t\r]")


def csv_text(text: str) -> str:
    """Escape a CSV cell: an apostrophe in front prevents a spreadsheet from running the text as a formula."""
    return f"'{text}" if _FORMULA.match(text) else text
