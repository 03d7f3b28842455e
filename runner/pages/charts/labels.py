"""Texts in charts: marks for invisible characters, widths, wrapping, and formats of numbers.

SVG does not wrap or cut texts, so charts estimate their widths.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from typing import Any

from runner.base.text import HIDDEN_CATEGORIES, decimal, dollars, with_interval

_WIDTHS = {
    **dict.fromkeys("'ijlIJ", 0.29), **dict.fromkeys(" ,./:;\\|f-", 0.35), **dict.fromkeys("()[]t!r", 0.41),
    **dict.fromkeys('"*_`szc?', 0.53), **dict.fromkeys("LFkvxyPTYaoe", 0.61), **dict.fromkeys("KAVBRXZC", 0.69),
    **dict.fromkeys("UHNDG&", 0.76), **dict.fromkeys("OQw#+<=>^~", 0.83), **dict.fromkeys("M%mW@", 0.95),
    "…": 1.0, "–": 0.5, "·": 0.32, "−": 0.84,
}  # fmt: skip
"""Widths of characters in ems in DejaVu Sans, the widest font that a browser may use. Default: `_DEFAULT_WIDTH`."""
_DEFAULT_WIDTH = 0.64
_FULL = 1.05
"""Width of a wide East Asian character."""
LARGEST = 1e100
"""The largest number that charts draw. Larger numbers are shown as missing, because no axis can include them."""
MISSING = "–"
"""Text for a missing number."""
MAX_LABEL_LINES = 3

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def mark_invisible(text: Any) -> str:
    """Replace each character that is invisible or changes the direction of text with a mark, such as `⟨U+202E⟩`."""
    line = str(text)
    if line.isascii() and line.isprintable():
        return line
    return "".join(
        _mark(character) if unicodedata.category(character) in HIDDEN_CATEGORIES else character for character in line
    )


def _mark(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


def width_of(text: str, size: float) -> float:
    """Return an upper estimate of the width of a text, with marks, in a sans serif font of this size."""
    return size * sum(map(_width, mark_invisible(text)))


def _width(character: str) -> float:
    width = _WIDTHS.get(character)
    if width is not None:
        return width
    if character.isascii():
        return _DEFAULT_WIDTH
    if unicodedata.combining(character):
        return 0.0
    return _FULL if unicodedata.east_asian_width(character) in "WF" else 0.67


def cut_to_width(text: str, max_width: float, size: float) -> str:
    """Cut a text to a width, with `…` at its end if it is too wide."""
    if width_of(text, size) <= max_width + 1e-6:
        return text
    return _fitting(text, max_width - width_of("…", size), size).rstrip() + "…"


def _fitting(text: str, max_width: float, size: float) -> str:
    """Return the start of a text that fits into a width."""
    for end, character in enumerate(text):
        max_width -= width_of(character, size)
        if max_width < 0:
            return text[:end]
    return text


def wrap_label(text: str, max_width: float, size: float) -> list[str]:
    """Wrap a name into up to three lines, if possible after `-`, `_`, `/`, `.` or a space; the last line may be cut."""
    wrapped: list[str] = []
    remaining = mark_invisible(text)
    while len(wrapped) < MAX_LABEL_LINES - 1 and width_of(remaining, size) > max_width:
        end = max(len(_fitting(remaining, max_width, size)), 1)
        separator_end = max((remaining.rfind(mark, 0, end) for mark in "-_/. "), default=-1) + 1
        end = separator_end if separator_end > end // 2 else end
        wrapped.append(remaining[:end].rstrip())
        remaining = remaining[end:].lstrip()
    return [*wrapped, cut_to_width(remaining, max_width, size)]


def drawable(value: Any) -> float | None:
    """Return a value as a number that can be drawn, or None if it is missing, not finite or too large."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    number = float(value)
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def format_number(value: Any, decimals: int = 3) -> str:
    """Format a number as in tables, or a dash for a missing number."""
    return decimal(drawable(value), decimals, MISSING).replace("-", "−")


def format_interval(value: Any, low: Any, high: Any) -> str:
    """Format a value with its interval: `0.417 [0.317, 0.523]`; without an interval there are no brackets."""
    return with_interval(drawable(value), drawable(low), drawable(high), none=MISSING).replace("-", "−")


def format_count(value: Any) -> str:
    """Format a count: `12,345`."""
    number = drawable(value)
    return MISSING if number is None else f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"


def format_dollars(value: Any) -> str:
    """Format dollars, with more decimals for small amounts."""
    return dollars(drawable(value))


def format_tick(number: float, decimals: int) -> str:
    """Format the number of a tick: `0.25`, `12k`, `−3`."""
    for unit, name in _UNITS:
        if abs(number) >= unit * 10:
            return f"{number / unit:.6g}{name}".replace("-", "−")
    text = f"{number:.{decimals}f}" if decimals <= 6 else f"{number:.3g}"
    return ("0" if float(text) == 0 and decimals == 0 else text).replace("-", "−")


def join_facts(facts: Iterable[str], most: int = 12) -> str:
    """Join the first `most` facts of a chart for its description, and add the number of further facts."""
    all_facts = list(facts)
    ending = f"; and {len(all_facts) - most} more" if len(all_facts) > most else ""
    return "; ".join(all_facts[:most]) + ending
