"""Charts with one row per estimate: points with intervals (a forest plot), or bars.

Figures (`nip-run plot`) and the pages of runs and comparisons contain these charts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from markupsafe import Markup

from runner.pages.charts.drawing import Drawing, empty_chart
from runner.pages.charts.estimates import ChartEstimate, values_of
from runner.pages.charts.labels import drawable, join_facts, width_of
from runner.pages.charts.scales import Scale, extent
from runner.pages.charts.styles import ChartFrame


def forest(
    estimates: Sequence[ChartEstimate],
    frame: ChartFrame,
    *,
    reference: float | None = None,
    reference_name: str = "",
    domain: tuple[float, float] | None = None,
    axis: str = "",
) -> Markup:
    """Draw estimates as points with intervals, and a dashed line at `reference`, such as 0 for differences.

    `domain` has the ends of the axis; default: a range that includes all estimates.
    """
    if not estimates:
        return empty_chart(frame)
    drawing = Drawing(frame)
    values = [estimate.text() for estimate in estimates]
    scale, rows = _draw_labels(drawing, estimates, values, domain or extent([*values_of(estimates), reference]))
    _draw_axis(drawing, scale, rows)
    half = _half_height(drawing)
    line = drawable(reference)
    for estimate, middle in zip(estimates, rows, strict=True):
        if line is not None:
            at = scale.at(line)
            drawing.line(at, middle - half, at, middle + half, "reference")
        _draw_point(drawing, estimate, scale, middle)
    has_name = reference_name and reference is not None
    drawing.note(" · ".join([*([axis] if axis else []), *([f"dashed: {reference_name}"] if has_name else [])]))
    return drawing.svg(
        f"{axis or 'values'}: " + join_facts(f"{estimate.name} {estimate.text()}" for estimate in estimates)
    )


def bars(
    estimates: Sequence[ChartEstimate],
    frame: ChartFrame,
    *,
    baseline: ChartEstimate | None = None,
    domain: tuple[float, float] | None = None,
    format_value: Callable[[Any], str] | None = None,
    axis: str = "",
) -> Markup:
    """Draw each estimate as a bar from 0 with its interval, and `baseline` with its interval across all bars.

    `format_value` formats values without an interval; `domain` is the same as in `forest`.
    """
    if not estimates:
        return empty_chart(frame)
    drawing = Drawing(frame)
    estimates_and_baseline = [*estimates, *([] if baseline is None else [baseline])]
    values = [
        format_value(estimate.value) if format_value and estimate.ends is None else estimate.text()
        for estimate in estimates
    ]
    scale, rows = _draw_labels(drawing, estimates, values, domain or extent(values_of(estimates_and_baseline), low=0.0))
    for estimate, middle in zip(estimates, rows, strict=True):
        _draw_bar(drawing, estimate, scale, middle)
    if baseline is not None:
        _draw_baseline(drawing, baseline, scale, rows)
    for estimate, middle in zip(estimates, rows, strict=True):
        if estimate.ends is not None:
            caps = (estimate.ends[0] is not None, estimate.ends[1] is not None)
            first, last = scale.places(estimate.ends)
            drawing.whisker((first, middle), (last, middle), "over", caps=caps)
    notes = [axis] if axis else []
    if baseline is not None:
        notes.append(f"dashed: {baseline.name} {baseline.text()}")
    drawing.y += drawing.size * 0.3
    drawing.note(" · ".join(notes))
    facts = (f"{estimate.name} {value}" for estimate, value in zip(estimates, values, strict=True))
    return drawing.svg(join_facts([*notes, *facts]))


def _draw_bar(drawing: Drawing, estimate: ChartEstimate, scale: Scale, middle: float) -> None:
    """Draw the bar of a value on a track as long as the scale."""
    bar_height = drawing.size * 0.8
    top = middle - bar_height / 2
    drawing.rect(scale.start, top, scale.end - scale.start, bar_height, "track")
    if (value := drawable(estimate.value)) is not None:
        zero, end = scale.at(0.0), scale.at(value)
        drawing.rect(min(zero, end), top, abs(end - zero), bar_height, "bar", series=0)


def _half_height(drawing: Drawing) -> float:
    """Return half of the height of a row."""
    return drawing.size * (0.7 if drawing.look.is_narrow else 0.85)


def _draw_labels(
    drawing: Drawing, estimates: Sequence[ChartEstimate], values: Sequence[str], ends: tuple[float, float]
) -> tuple[Scale, list[float]]:
    """Draw the name and the value of each row; return the scale between them, and the y coordinate of each row.

    In a narrow chart, names and values are above the bars or points.
    """
    size, is_narrow = drawing.size, drawing.look.is_narrow
    widest = max(width_of(value, size) for value in values)
    names = max(width_of(estimate.name, size) for estimate in estimates)
    left = size * 0.6 if is_narrow else min(names, drawing.width * 0.34) + size * 1.6
    scale = Scale(*ends, left, drawing.width - size * 0.6 if is_narrow else drawing.width - widest - size * 1.6)
    rows = []
    for estimate, value in zip(estimates, values, strict=True):
        drawing.y += size * (1.3 if is_narrow else 1.7)
        base = drawing.y - (0 if is_narrow else size * 0.5)
        name_width = drawing.width - width_of(value, size) - size if is_narrow else left - size * 1.2
        tooltip = f"{estimate.name}: {estimate.note}" if estimate.note else None
        drawing.text(0, base, estimate.name, max_width=name_width, title=tooltip)
        drawing.text(drawing.width, base, value, anchor="end")
        drawing.y += size * 1.7 if is_narrow else 0
        rows.append(drawing.y - size * (0.8 if is_narrow else 0.85))
    return scale, rows


def _draw_point(drawing: Drawing, estimate: ChartEstimate, scale: Scale, y: float) -> None:
    """Draw a point with its interval; an arrow replaces the cap of an end that is open or beyond the axis."""
    value, size = drawable(estimate.value), drawing.size
    if value is None:
        drawing.line(scale.start, y, scale.end, y, "grid")
        return
    if estimate.ends is not None:
        first, last = scale.places(estimate.ends)
        caps = tuple(end is not None and scale.low <= end <= scale.high for end in estimate.ends)
        drawing.whisker((first, y), (last, y), series=0, caps=caps)
        for place, is_closed, inward in zip((first, last), caps, (size * 0.4, -size * 0.4), strict=True):
            if not is_closed:
                tip = [(place + inward, y - size * 0.3), (place, y), (place + inward, y + size * 0.3)]
                drawing.polyline(tip, "whisker", 0)
    drawing.mark(scale.at(value), y, 0, f"{estimate.name}: {estimate.text_with_note()}")


def _draw_baseline(drawing: Drawing, baseline: ChartEstimate, scale: Scale, rows: Sequence[float]) -> None:
    """Draw a dashed line on each bar, and a band between the ends of the interval."""
    value, half = drawable(baseline.value), drawing.size * 0.6
    if value is None:
        return
    for row in rows:
        if baseline.ends is not None:
            first, last = scale.places(baseline.ends)
            drawing.rect(first, row - half, last - first, half * 2, "reference-band")
        drawing.line(scale.at(value), row - half, scale.at(value), row + half, "reference")


def _draw_axis(drawing: Drawing, scale: Scale, rows: Sequence[float]) -> None:
    """Draw grid lines at round numbers across the rows, and the numbers below the rows."""
    size, half, bottom = drawing.size, _half_height(drawing), drawing.y
    max_ticks = max(2, min(6, int((scale.end - scale.start) / (size * 4))))
    for tick in scale.ticks(max_ticks):
        at = scale.at(tick.value)
        for row in rows:
            drawing.line(at, row - half, at, row + half, "grid")
        half_width = width_of(tick.label, size) / 2
        x = min(max(at, half_width), drawing.width - half_width)  # keeps the tick's number inside the chart
        drawing.text(x, bottom + size * 1.3, tick.label, "soft", anchor="middle")
    drawing.line(scale.start, bottom, scale.end, bottom, "axis")
    drawing.y = bottom + size * 1.7
