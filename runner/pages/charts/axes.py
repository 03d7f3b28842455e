"""Draws the axes of a chart with an x and a y axis: grid lines, ticks, numbers and titles."""

from __future__ import annotations

from dataclasses import dataclass

from runner.pages.charts.drawing import Drawing
from runner.pages.charts.labels import width_of
from runner.pages.charts.scales import Scale, Tick, decades, extent


@dataclass(frozen=True)
class Axis:
    """An axis from `low` to `high`; `ticks` replaces the default ticks at round numbers."""

    name: str
    low: float
    high: float
    ticks: tuple[Tick, ...] = ()
    logarithmic: bool = False


def amount_axis(name: str, values: list[float | None]) -> Axis:
    """Return an axis for amounts: logarithmic if they differ by a factor of 20 or more, otherwise from 0."""
    ends = decades(values)
    if ends is not None:
        return Axis(f"{name}, logarithmic", *ends, logarithmic=True)
    return Axis(name, *extent(values, low=0.0))


def draw_axes(drawing: Drawing, x: Axis, y: Axis, height: float, *, square: bool = False) -> tuple[Scale, Scale]:
    """Draw the axes of a chart of this height and return their scales; move `drawing.y` below the title of `x`.

    With `square`, both axes have the same length.
    """
    size = drawing.size
    drawing.y += size * 1.2
    drawing.text(0, drawing.y - size * 0.2, y.name, "soft", max_width=drawing.width)
    top = drawing.y + size * 0.8
    bottom = top + height
    y_scale = Scale(y.low, y.high, bottom, top, y.logarithmic)
    rows = y.ticks or y_scale.ticks(max(2, int(height / (size * 2.6))))
    left = max((width_of(tick.label, size) for tick in rows), default=0.0) + size * 0.6
    right = left + height if square else drawing.width - size * 0.7
    x_scale = Scale(x.low, x.high, left, right, x.logarithmic)
    for tick in rows:
        at = y_scale.at(tick.value)
        drawing.line(left, at, x_scale.end, at, "grid")
        drawing.text(left - size * 0.4, at + size * 0.35, tick.label, "soft", anchor="end")
    drawing.line(left, bottom, x_scale.end, bottom, "axis")
    _draw_lower_ticks(drawing, x, x_scale, bottom)
    drawing.y = bottom + size * 1.6
    if x.name:
        drawing.y += size * 1.3
        drawing.text(x_scale.end, drawing.y - size * 0.2, x.name, "soft", anchor="end", max_width=x_scale.end)
    drawing.y += size * 0.3
    return x_scale, y_scale


def _draw_lower_ticks(drawing: Drawing, x: Axis, x_scale: Scale, bottom: float) -> None:
    """Draw as many numbers of the lower axis as fit."""
    size = drawing.size
    ticks = x.ticks or x_scale.ticks(max(2, int((x_scale.end - x_scale.start) / (size * 4))))
    last = -1e9
    for tick in ticks:
        at, half_width = x_scale.at(tick.value), width_of(tick.label, size) / 2
        if at - half_width < last + size * 0.5:
            continue
        last = at + half_width
        drawing.line(at, bottom, at, bottom + size * 0.3, "axis")
        drawing.text(min(at, drawing.width - half_width), bottom + size * 1.35, tick.label, "soft", anchor="middle")
