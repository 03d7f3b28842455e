"""A learning curve: a value over iterations, for several series, each with its band."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from runner.pages.charts.axes import Axis, framed
from runner.pages.charts.drawing import Drawing, empty
from runner.pages.charts.estimates import ChartEstimate, values_of
from runner.pages.charts.labels import known, listed
from runner.pages.charts.scales import Scale, Tick, extent
from runner.pages.charts.styles import PAGE, Look
from runner.results.metric_table import RANKING_METRIC

Stretch = Sequence[tuple[float, ChartEstimate]]
"""Points without a gap between them."""


@dataclass(frozen=True)
class Series:
    """`points`: each a place on the axis, and what was measured there."""

    name: str
    points: Sequence[tuple[float, ChartEstimate]]


_MOST_TICKS = 12
"""So many whole numbers have a tick each."""
_MOST_MARKS = 60
"""With more points in a series, the line alone is drawn."""


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
    """Lines with bands between the ends of their intervals; where a value is missing, the line is broken."""
    places = sorted({at for one in series for at, _ in one.points if known(at) is not None})
    if not places:
        return empty(look, title, key=key)
    drawing = Drawing(look, title)
    if len(series) > 1:
        drawing.legend([one.name for one in series])
    low, high = domain or extent(values_of([point for one in series for _, point in one.points]))
    first, last = places[0], places[-1]
    if first == last:
        first, last = first - 1, last + 1
    whole = all(at == int(at) for at in places)
    few = whole and len(places) <= _MOST_TICKS
    ticks = tuple(Tick(at, f"{at:.0f}") for at in places) if few else ()
    across, up = framed(drawing, Axis(x, first, last, ticks), Axis(y, low, high), look.width * 0.5)
    for number, one in enumerate(series):
        for stretch in _stretches(one):
            _band(drawing, stretch, (across, up), number)
    for number, one in enumerate(series):
        for stretch in _stretches(one):
            _line(drawing, one.name, stretch, (across, up), number)
    drawing.note(note)
    return drawing.svg(_told(series, x, y), key)


def _stretches(series: Series) -> list[list[tuple[float, ChartEstimate]]]:
    """The points between those that are missing, in the order of their places."""
    found: list[list[tuple[float, ChartEstimate]]] = [[]]
    for at, point in sorted((one for one in series.points if known(one[0]) is not None), key=lambda one: one[0]):
        if known(point.value) is not None:
            found[-1].append((at, point))
        elif found[-1]:
            found.append([])
    return [stretch for stretch in found if stretch]


def _band(drawing: Drawing, stretch: Stretch, scales: tuple[Scale, Scale], number: int) -> None:
    across, up = scales
    spans = [(across.at(at), *up.places(point.ends)) for at, point in stretch if point.ends is not None]
    if len(spans) > 1 and len(spans) == len(stretch):
        upper, lower = [(x, high) for x, _, high in spans], [(x, low) for x, low, _ in spans]
        drawing.polygon([*upper, *reversed(lower)], "band", number)
        return
    for x, low, high in spans:
        drawing.line(x, high, x, low, "whisker", series=number)


def _line(drawing: Drawing, name: str, stretch: Stretch, scales: tuple[Scale, Scale], number: int) -> None:
    across, up = scales
    points = [(across.at(at), up.at(known(point.value) or 0.0)) for at, point in stretch]
    if any(one != other for one, other in pairwise(points)):
        drawing.polyline(points, "line", number)
    if len(points) > _MOST_MARKS:
        return
    for (x, y), (at, point) in zip(points, stretch, strict=True):
        drawing.mark(x, y, number, f"{name}, {at:g}: {point.text()}{f', {point.note}' if point.note else ''}")


def _told(series: Sequence[Series], x: str, y: str) -> str:
    facts = (
        f"{one.name} at {x} {at:g}: {point.text()}"
        for one in series
        for at, point in one.points
        if known(at) is not None
    )
    return f"{y} over {x}: {listed(facts)}"
