"""A forest plot: estimates one below the other, each with its interval, beside a line of reference."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from runner.pages.charts.drawing import Drawing, empty
from runner.pages.charts.estimates import ChartEstimate, groups_of, values_of
from runner.pages.charts.labels import known, listed, visible, width_of
from runner.pages.charts.scales import Scale, extent
from runner.pages.charts.styles import PAGE, Look


def forest(
    estimates: Sequence[ChartEstimate],
    *,
    title: str,
    look: Look = PAGE,
    reference: float | None = None,
    reference_name: str = "",
    domain: tuple[float, float] | None = None,
    axis: str = "",
    key: str = "",
) -> Markup:
    """Estimates as points with intervals; `reference` is where a line is drawn, such as 0 of differences.

    `domain`: the ends of the axis, else those of what is drawn.
    """
    if not estimates:
        return empty(look, title, "There is nothing to show yet.", key)
    drawing = Drawing(look, title)
    low, high = domain or extent([*values_of(estimates), reference])
    if look.is_narrow:
        scale = Scale(low, high, look.size * 0.6, drawing.width - look.size * 0.6)
    else:
        names = min(max(width_of(visible(one.name), look.size) for one in estimates), drawing.width * 0.34)
        numbers = max(width_of(one.told(), look.size) for one in estimates)
        scale = Scale(low, high, names + look.size * 1.6, drawing.width - numbers - look.size * 1.6)
    groups = groups_of(estimates)
    if len(groups) > 1:
        drawing.legend([name or "others" for name in groups])
    rows = [_row(drawing, one, scale) for one in estimates]
    _axis(drawing, scale, rows)
    for one, middle in zip(estimates, rows, strict=True):
        if reference is not None and known(reference) is not None:
            at, half = scale.at(reference), look.size * (0.7 if look.is_narrow else 0.85)
            drawing.line(at, middle - half, at, middle + half, "reference")
        interval(drawing, one, scale, middle, groups[one.group])
    _foot(drawing, axis, reference_name, reference)
    return drawing.svg(f"{axis or 'values'}: " + listed(f"{one.name} {one.told()}" for one in estimates), key)


def _row(drawing: Drawing, one: ChartEstimate, scale: Scale) -> float:
    """The words of one estimate; where its interval is to be drawn."""
    size = drawing.size
    shown = one.told()
    wide = width_of(shown, size)
    if drawing.look.is_narrow:
        drawing.y += size * 1.3
        drawing.text(0, drawing.y, one.name, most=drawing.width - wide - size, title=_full(one))
        drawing.text(drawing.width, drawing.y, shown, anchor="end")
        drawing.y += size * 1.7
        return drawing.y - size * 0.8
    drawing.y += size * 1.7
    drawing.text(0, drawing.y - size * 0.5, one.name, most=scale.start - size * 1.2, title=_full(one))
    drawing.text(drawing.width, drawing.y - size * 0.5, shown, anchor="end")
    return drawing.y - size * 0.85


def _full(one: ChartEstimate) -> str | None:
    return f"{one.name}: {one.note}" if one.note else None


def interval(drawing: Drawing, one: ChartEstimate, scale: Scale, y: float, series: int) -> None:
    """A point with its whisker; an end that is open has an arrow and no bar across."""
    value, ends, size = known(one.value), one.ends, drawing.size
    if value is None:
        drawing.line(scale.start, y, scale.end, y, "grid")
        return
    about = f"{one.name}: {one.told()}{f', {one.note}' if one.note else ''}"
    if ends is not None:
        places = [
            scale.start if ends[0] is None else scale.at(ends[0]),
            scale.end if ends[1] is None else scale.at(ends[1]),
        ]
        drawing.line(places[0], y, places[1], y, "whisker", series=series)
        for place, end, inward in ((places[0], ends[0], 1), (places[1], ends[1], -1)):
            if end is None or not scale.low <= end <= scale.high:
                tip = [
                    (place + inward * size * 0.4, y - size * 0.3),
                    (place, y),
                    (place + inward * size * 0.4, y + size * 0.3),
                ]
                drawing.polyline(tip, "whisker", series)
            else:
                drawing.line(place, y - size * 0.28, place, y + size * 0.28, "whisker", series=series)
    drawing.mark(scale.at(value), y, series, about)


def _axis(drawing: Drawing, scale: Scale, rows: Sequence[float]) -> None:
    """Thin lines at round numbers, beside the words of each row and not through them; the numbers are below."""
    size = drawing.size
    half = size * (0.7 if drawing.look.is_narrow else 0.85)
    bottom = drawing.y
    most = max(2, min(6, int((scale.end - scale.start) / (size * 4))))
    for tick in scale.ticks(most):
        at = scale.at(tick.value)
        for row in rows:
            drawing.line(at, row - half, at, row + half, "grid")
        wide = width_of(tick.label, size) / 2
        drawing.text(min(max(at, wide), drawing.width - wide), bottom + size * 1.3, tick.label, "soft", anchor="middle")
    drawing.line(scale.start, bottom, scale.end, bottom, "axis")
    drawing.y = bottom + size * 1.7


def _foot(drawing: Drawing, axis: str, reference_name: str, reference: float | None) -> None:
    words = [axis] if axis else []
    if reference_name and reference is not None:
        words.append(f"dashed: {reference_name}")
    if words:
        drawing.note(" · ".join(words))
