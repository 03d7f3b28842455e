"""Bars: shares with intervals beside a baseline, counts, amounts in parts; and columns for a distribution."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from runner.pages.charts.axes import Axis, framed
from runner.pages.charts.drawing import Drawing, empty
from runner.pages.charts.estimates import ChartEstimate, values_of
from runner.pages.charts.labels import counted, known, listed, visible, width_of
from runner.pages.charts.scales import Scale, Tick, extent
from runner.pages.charts.styles import PAGE, Look

MOST_COLUMNS = 40
"""With more values, a distribution's columns hold several of them."""


@dataclass(frozen=True)
class Stack:
    """A name with the parts of its amount, in the order of the legend."""

    name: str
    parts: Sequence[float | None]

    @property
    def total(self) -> float | None:
        """None where no part is known."""
        every = [number for part in self.parts if (number := known(part)) is not None]
        return sum(every) if every else None


def bars(
    estimates: Sequence[ChartEstimate],
    *,
    title: str,
    look: Look = PAGE,
    baseline: ChartEstimate | None = None,
    domain: tuple[float, float] | None = None,
    told: Callable[[Any], str] | None = None,
    axis: str = "",
    key: str = "",
) -> Markup:
    """A bar from 0 for each estimate, and its interval on it; `baseline` is drawn through all, with its interval.

    `told`: how values are written that have no interval; `domain` as in `forest`.
    """
    if not estimates:
        return empty(look, title, "There is nothing to show yet.", key)
    drawing = Drawing(look, title)
    every = [*estimates, *([] if baseline is None else [baseline])]
    low, high = domain or extent(values_of(every), low=0.0)
    shown = [told(one.value) if told and one.ends is None else one.told() for one in estimates]
    scale, rows = _rows(drawing, [one.name for one in estimates], [one.note for one in estimates], shown, (low, high))
    for one, middle in zip(estimates, rows, strict=True):
        _bar(drawing, scale, middle, [known(one.value)])
    if baseline is not None:
        _baseline(drawing, baseline, scale, rows)
    for one, middle in zip(estimates, rows, strict=True):
        if one.ends is not None:
            _whisker(drawing, one, scale, middle)
    words = [axis] if axis else []
    if baseline is not None:
        words.append(f"dashed: {baseline.name} {baseline.told()}")
    if words:
        drawing.note(" · ".join(words))
    named = (f"{one.name} {value}" for one, value in zip(estimates, shown, strict=True))
    return drawing.svg(listed([*words, *named]), key)


def stacked(
    stacks: Sequence[Stack],
    parts: Sequence[str],
    *,
    title: str,
    look: Look = PAGE,
    told: Callable[[Any], str] = counted,
    key: str = "",
) -> Markup:
    """A bar for each amount, in its parts; the sum beside it."""
    if not stacks:
        return empty(look, title, "There is nothing to show yet.", key)
    drawing = Drawing(look, title)
    if len(parts) > 1:
        drawing.legend(parts, swatch="bar")
    shown = [told(one.total) for one in stacks]
    ends = extent([one.total for one in stacks], low=0.0)
    scale, rows = _rows(drawing, [one.name for one in stacks], [""] * len(stacks), shown, ends)
    for one, middle in zip(stacks, rows, strict=True):
        _bar(drawing, scale, middle, [known(part) for part in one.parts], one.total is not None)
    facts = (
        f"{one.name}, {part}: {told(value)}" for one in stacks for part, value in zip(parts, one.parts, strict=True)
    )
    return drawing.svg(listed(facts), key)


def _rows(
    drawing: Drawing, names: Sequence[str], notes: Sequence[str], shown: Sequence[str], ends: tuple[float, float]
) -> tuple[Scale, list[float]]:
    """The words of each bar, the scale, and where the bars are drawn."""
    size, wide = drawing.size, max(width_of(value, drawing.size) for value in shown)
    narrow = drawing.look.is_narrow
    left = 0.0 if narrow else min(max(width_of(visible(name), size) for name in names), drawing.width * 0.34) + size
    scale = Scale(*ends, left + (0.5 if narrow else 0), drawing.width - (1 if narrow else wide + size))
    rows = []
    for name, note, value in zip(names, notes, shown, strict=True):
        drawing.y += size * (1.3 if narrow else 1.8)
        base = drawing.y - (0 if narrow else size * 0.55)
        room = drawing.width - wide - size if narrow else left - size * 0.6
        drawing.text(0, base, name, most=room, title=f"{name}: {note}" if note else None)
        drawing.text(drawing.width, base, value, anchor="end")
        drawing.y += size * 1.5 if narrow else 0
        rows.append(drawing.y - size * (0.8 if narrow else 0.9))
    drawing.y += size * 0.3
    return scale, rows


def _bar(drawing: Drawing, scale: Scale, middle: float, parts: Sequence[float | None], known_: bool = True) -> None:
    """The parts of one bar after each other, on the track of the longest."""
    high = drawing.size * 0.8
    drawing.rect(scale.start, middle - high / 2, scale.end - scale.start, high, "track")
    zero = scale.at(0.0)
    before = 0.0
    for series, part in enumerate(parts if known_ else ()):
        if part is None:
            continue
        first, last = (scale.at(before), scale.at(before + part)) if len(parts) > 1 else (zero, scale.at(part))
        drawing.rect(min(first, last), middle - high / 2, abs(last - first), high, "bar", series=series)
        before += part


def _whisker(drawing: Drawing, one: ChartEstimate, scale: Scale, y: float) -> None:
    ends, size = one.ends, drawing.size
    assert ends is not None
    first, last = (
        scale.at(scale.low if ends[0] is None else ends[0]),
        scale.at(scale.high if ends[1] is None else ends[1]),
    )
    drawing.line(first, y, last, y, "over")
    for place, end in ((first, ends[0]), (last, ends[1])):
        if end is not None:
            drawing.line(place, y - size * 0.25, place, y + size * 0.25, "over")


def _baseline(drawing: Drawing, baseline: ChartEstimate, scale: Scale, rows: Sequence[float]) -> None:
    """A dashed line at its value on each bar, and a band between the ends of its interval."""
    value, ends, size = known(baseline.value), baseline.ends, drawing.size
    if value is None:
        return
    half = size * 0.6
    for row in rows:
        if ends is not None:
            first = scale.at(scale.low if ends[0] is None else ends[0])
            last = scale.at(scale.high if ends[1] is None else ends[1])
            drawing.rect(first, row - half, last - first, half * 2, "reference-band")
        drawing.line(scale.at(value), row - half, scale.at(value), row + half, "reference")


def columns(
    counts: Sequence[tuple[float, float | None]],
    *,
    title: str,
    look: Look = PAGE,
    x: str = "",
    y: str = "games",
    key: str = "",
) -> Markup:
    """How often each whole number was: rounds to decision, retries. Many numbers share columns."""
    have = {int(at): n for at, count in counts if known(at) is not None and (n := known(count)) is not None}
    if not have:
        return empty(look, title, "There is nothing to show yet.", key)
    first, last = min(have), max(have)
    each = -(-(last - first + 1) // MOST_COLUMNS)
    held = [
        (start, sum(n for at, n in have.items() if start <= at < start + each))
        for start in range(first, last + 1, each)
    ]
    drawing = Drawing(look, title)
    names = [(start, str(start) if each == 1 else f"{start}–{start + each - 1}") for start, _ in held]
    ticks = tuple(Tick(start + (each - 1) / 2, name) for start, name in names)
    high = extent([n for _, n in held], low=0.0)
    axis = Axis(x, first - 0.6, names[-1][0] + each - 0.4, ticks)
    across, up = framed(drawing, axis, Axis(y, *high), look.width * 0.35)
    most = look.size * 3
    for (start, n), (_, name) in zip(held, names, strict=True):
        left, right = across.at(start - 0.4), across.at(start + each - 0.6)
        middle, wide = (left + right) / 2, min(right - left, most)
        drawing.rect(
            middle - wide / 2, up.at(n), wide, up.start - up.at(n), "bar", series=0, title=f"{name}: {counted(n)}"
        )
    return drawing.svg(
        f"{y} by {x}: " + listed(f"{name}: {counted(n)}" for (_, n), (_, name) in zip(held, names, strict=True)), key
    )
