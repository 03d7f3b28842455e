"""Words and numbers of charts: marks for what cannot be seen, how wide a text is, how a number is told."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Iterable
from typing import Any

from runner.base.text import decimal, dollars, with_interval

_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))
_WIDTHS = {
    **dict.fromkeys("'ijlIJ", 0.29), **dict.fromkeys(" ,./:;\\|f-", 0.35), **dict.fromkeys("()[]t!r", 0.41),
    **dict.fromkeys('"*_`szc?', 0.53), **dict.fromkeys("LFkvxyPTYaoe", 0.61), **dict.fromkeys("KAVBRXZC", 0.69),
    **dict.fromkeys("UHNDG&", 0.76), **dict.fromkeys("OQw#+<=>^~", 0.83), **dict.fromkeys("M%mW@", 0.95),
    "…": 1.0, "–": 0.5, "·": 0.32, "−": 0.84,
}  # fmt: skip
"""Of a character, in parts of the font's size: of DejaVu Sans, the widest that a browser may take. Others: `_OTHER`."""
_OTHER = 0.64
_FULL = 1.05
LARGEST = 1e100
"""A number beyond it is shown as missing: no axis can be laid through it."""
MISSING = "–"

_UNITS = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


def visible(text: Any) -> str:
    """A text in one line, each character that cannot be seen, or moves others about, as a mark: `⟨U+202E⟩`."""
    words = str(text)
    if words.isascii() and words.isprintable():
        return words
    return "".join(_mark(one) if unicodedata.category(one) in _HIDDEN else one for one in words)


def _mark(character: str) -> str:
    return f"⟨U+{ord(character):04X}⟩"


def width_of(text: str, size: float) -> float:
    """About how wide a text is set in a sans serif of this size; rather too wide than too narrow."""
    return size * sum(map(_width, text))


def _width(character: str) -> float:
    known = _WIDTHS.get(character)
    if known is not None:
        return known
    if character.isascii():
        return _OTHER
    if unicodedata.combining(character):
        return 0.0
    return _FULL if unicodedata.east_asian_width(character) in "WF" else 0.67


def fitted(text: str, most: float, size: float) -> str:
    """A text that is as wide as there is room, its end left out where it is wider."""
    if width_of(text, size) <= most + 1e-6:
        return text
    room, kept = most - width_of("…", size), []
    for character in text:
        room -= width_of(character, size)
        if room < 0:
            break
        kept.append(character)
    return "".join(kept).rstrip() + "…"


def broken(text: str, most: float, size: float, lines: int = 3) -> list[str]:
    """A name in lines that fit, broken after `-`, `_`, `/`, `.` or a space; what is left over is cut."""
    found: list[str] = []
    rest = text
    while len(found) < lines - 1 and width_of(rest, size) > most:
        cut, room = 0, most
        for character in rest:
            room -= width_of(character, size)
            if room < 0:
                break
            cut += 1
        cut = max(cut, 1)
        good = max((rest.rfind(mark, 0, cut) for mark in "-_/. "), default=-1) + 1
        cut = good if good > cut // 2 else cut
        found.append(rest[:cut].rstrip())
        rest = rest[cut:].lstrip()
    return [*found, fitted(rest, most, size)]


def known(value: Any) -> float | None:
    """A number that can be drawn; None of what is missing, not a number, or beyond all bounds."""
    if value is None or isinstance(value, (str, bytes)):
        return None
    number = float(value)
    return number if math.isfinite(number) and abs(number) <= LARGEST else None


def told(value: Any, decimals: int = 3) -> str:
    """A number of a result, as tables have it; a dash where there is none."""
    return decimal(known(value), decimals, MISSING).replace("-", "−")


def told_between(value: Any, low: Any, high: Any, decimals: int = 3) -> str:
    """`0.417 [0.317, 0.523]`; without an interval there are no brackets."""
    return with_interval(known(value), known(low), known(high), decimals, MISSING).replace("-", "−")


def counted(value: Any) -> str:
    """A number of things: `12,345`."""
    number = known(value)
    return MISSING if number is None else f"{number:,.0f}" if number == int(number) else f"{number:,.2f}"


def money(value: Any) -> str:
    """Format dollars, with as many figures as a small sum needs."""
    return dollars(known(value))


def short(number: float, decimals: int) -> str:
    """A number beside a tick: `0.25`, `12k`, `−3`."""
    for unit, name in _UNITS:
        if abs(number) >= unit * 10:
            return f"{number / unit:.6g}{name}".replace("-", "−")
    words = f"{number:.{decimals}f}" if decimals <= 6 else f"{number:.3g}"
    return ("0" if float(words) == 0 and decimals == 0 else words).replace("-", "−")


def listed(facts: Iterable[str], most: int = 12) -> str:
    """What a chart shows, for those who hear it: the first facts, and how many there are more."""
    every = list(facts)
    more = f"; and {len(every) - most} more" if len(every) > most else ""
    return "; ".join(every[:most]) + more
