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
from runner.pages.charts.styles import ChartFrame
from runner.results.metric_definitions import RANKING_METRIC

Segment = Sequence[tuple[float, ChartEstimate]]
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
    frame: ChartFrame,
    *,
    x: str = "iteration",
    y: str = RANKING_METRIC,
    domain: tuple[float, float] | None = None,
    note: str = "",
) -> Markup:
    """Draw lines with bands for their intervals. A missing value interrupts the line."""
    x_values = sorted({x_value for line in series for x_value, _ in line.points if drawable(x_value) is not None})
    if not x_values:
        return empty_chart(frame)
    drawing = Drawing(frame)
    if len(series) > 1:
        drawing.legend([line.name for line in series])
    low, high = domain or extent(values_of([point for line in series for _, point in line.points]))
    first, last = x_values[0], x_values[-1]
    if first == last:
        first, last = first - 1, last + 1
    are_few_whole = len(x_values) <= _MAX_TICKS and all(x_value == int(x_value) for x_value in x_values)
    ticks = tuple(Tick(x_value, f"{x_value:.0f}") for x_value in x_values) if are_few_whole else ()
    x_scale, y_scale = draw_axes(drawing, Axis(x, first, last, ticks), Axis(y, low, high), frame.look.width * 0.5)
    for number, line in enumerate(series):
        for segment in _segments(line):
            _draw_band(drawing, segment, (x_scale, y_scale), number)
    for number, line in enumerate(series):
        for segment in _segments(line):
            _draw_line(drawing, line.name, segment, (x_scale, y_scale), number)
    drawing.note(note)
    return drawing.svg(_description(series, x, y))


def _segments(series: Series) -> list[list[tuple[float, ChartEstimate]]]:
    """Return the points of a series in order, split at missing values."""
    segments: list[list[tuple[float, ChartEstimate]]] = [[]]
    points = [(x_value, point) for x_value, point in series.points if drawable(x_value) is not None]
    for x_value, point in sorted(points, key=lambda pair: pair[0]):
        if drawable(point.value) is not None:
            segments[-1].append((x_value, point))
        elif segments[-1]:
            segments.append([])
    return [segment for segment in segments if segment]


def _draw_band(drawing: Drawing, segment: Segment, scales: tuple[Scale, Scale], number: int) -> None:
    """Draw the intervals of a segment: as a band or, if there is one point or a point has no interval, as lines."""
    x_scale, y_scale = scales
    spans = [(x_scale.at(x_value), *y_scale.places(point.ends)) for x_value, point in segment if point.ends is not None]
    if len(spans) > 1 and len(spans) == len(segment):
        upper, lower = [(x, high) for x, _, high in spans], [(x, low) for x, low, _ in spans]
        drawing.polygon([*upper, *reversed(lower)], "band", number)
        return
    for x, low, high in spans:
        drawing.line(x, high, x, low, "whisker", series=number)


def _draw_line(drawing: Drawing, name: str, segment: Segment, scales: tuple[Scale, Scale], number: int) -> None:
    x_scale, y_scale = scales
    points = [(x_scale.at(x_value), y_scale.at(drawable(point.value) or 0.0)) for x_value, point in segment]
    if any(first != second for first, second in pairwise(points)):
        drawing.polyline(points, "line", number)
    if len(points) > _MAX_MARKS:
        return
    for (x, y), (x_value, point) in zip(points, segment, strict=True):
        drawing.mark(x, y, number, f"{name}, {x_value:g}: {point.text_with_note()}")


def _description(series: Sequence[Series], x: str, y: str) -> str:
    facts = (
        f"{line.name} at {x} {x_value:g}: {point.text()}"
        for line in series
        for x_value, point in line.points
        if drawable(x_value) is not None
    )
    return f"{y} over {x}: {join_facts(facts)}"
