"""A line chart, such as a learning curve: values over iterations for one or more series, with interval bands."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from runner.pages.charts.axes import Axis, draw_axes
from runner.pages.charts.drawing import Drawing, empty_chart
from runner.pages.charts.estimates import ChartEstimate, values_of
from runner.pages.charts.labels import drawable, join_facts
from runner.pages.charts.scales import Scale, Tick, extent
from runner.pages.charts.styles import PAGE, Look
from runner.results.metric_definitions import RANKING_METRIC

Stretch = Sequence[tuple[float, ChartEstimate]]
"""Consecutive points without a missing value."""


@dataclass(frozen=True)
class Series:
    """A line of a chart. Each point is a coordinate on the x axis and the estimate there."""

    name: str
    points: Sequence[tuple[float, ChartEstimate]]


_MAX_TICKS = 12
"""Maximum number of whole numbers that all get a tick."""
_MAX_MARKS = 60
"""Maximum number of points with marks. A series with more points is drawn only as a line."""


def curve(
    series: Sequence[Series],
    *,
    title: str,
    look: Look = PAGE,
    x: str = "iteration",
    y: str = RANKING_METRIC,
    domain: tuple[float, float] | None = None,
    note: str = "",
    key: str = "",
) -> Markup:
    """Draw lines with bands for their intervals. A missing value interrupts the line."""
    x_values = sorted({at for line in series for at, _ in line.points if drawable(at) is not None})
    if not x_values:
        return empty_chart(look, title, key=key)
    drawing = Drawing(look, title)
    if len(series) > 1:
        drawing.legend([line.name for line in series])
    low, high = domain or extent(values_of([point for line in series for _, point in line.points]))
    first, last = x_values[0], x_values[-1]
    if first == last:
        first, last = first - 1, last + 1
    are_few_whole = len(x_values) <= _MAX_TICKS and all(at == int(at) for at in x_values)
    ticks = tuple(Tick(at, f"{at:.0f}") for at in x_values) if are_few_whole else ()
    across, up = draw_axes(drawing, Axis(x, first, last, ticks), Axis(y, low, high), look.width * 0.5)
    for number, line in enumerate(series):
        for stretch in _stretches(line):
            _draw_band(drawing, stretch, (across, up), number)
    for number, line in enumerate(series):
        for stretch in _stretches(line):
            _draw_line(drawing, line.name, stretch, (across, up), number)
    drawing.note(note)
    return drawing.svg(_description(series, x, y), key)


def _stretches(series: Series) -> list[list[tuple[float, ChartEstimate]]]:
    """Return the points of a series in order, split at missing values."""
    stretches: list[list[tuple[float, ChartEstimate]]] = [[]]
    points = [(at, point) for at, point in series.points if drawable(at) is not None]
    for at, point in sorted(points, key=lambda pair: pair[0]):
        if drawable(point.value) is not None:
            stretches[-1].append((at, point))
        elif stretches[-1]:
            stretches.append([])
    return [stretch for stretch in stretches if stretch]


def _draw_band(drawing: Drawing, stretch: Stretch, scales: tuple[Scale, Scale], number: int) -> None:
    """Draw the intervals of a stretch as a band, or as single lines if a point has none or there is one point."""
    across, up = scales
    spans = [(across.at(at), *up.places(point.ends)) for at, point in stretch if point.ends is not None]
    if len(spans) > 1 and len(spans) == len(stretch):
        upper, lower = [(x, high) for x, _, high in spans], [(x, low) for x, low, _ in spans]
        drawing.polygon([*upper, *reversed(lower)], "band", number)
        return
    for x, low, high in spans:
        drawing.line(x, high, x, low, "whisker", series=number)


def _draw_line(drawing: Drawing, name: str, stretch: Stretch, scales: tuple[Scale, Scale], number: int) -> None:
    across, up = scales
    points = [(across.at(at), up.at(drawable(point.value) or 0.0)) for at, point in stretch]
    if any(first != second for first, second in pairwise(points)):
        drawing.polyline(points, "line", number)
    if len(points) > _MAX_MARKS:
        return
    for (x, y), (at, point) in zip(points, stretch, strict=True):
        drawing.mark(x, y, number, f"{name}, {at:g}: {point.text_with_note()}")


def _description(series: Sequence[Series], x: str, y: str) -> str:
    facts = (
        f"{line.name} at {x} {at:g}: {point.text()}"
        for line in series
        for at, point in line.points
        if drawable(at) is not None
    )
    return f"{y} over {x}: {join_facts(facts)}"
