"""A chart of cost against accuracy, with the frontier: each system that is better than all cheaper systems."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from runner.pages.charts.axes import Axis, amount_axis, draw_axes
from runner.pages.charts.drawing import Drawing, Point, empty_chart
from runner.pages.charts.estimates import ChartEstimate, values_of
from runner.pages.charts.labels import cut_to_width, drawable, format_dollars, join_facts, mark_invisible, width_of
from runner.pages.charts.scales import Scale, extent
from runner.pages.charts.styles import ChartFrame
from runner.results.metric_definitions import RANKING_METRIC

MAX_NAMES = 24
"""Maximum number of systems that all have names. If there are more, only systems on the frontier have names."""

_Box = tuple[float, float, float, float]
"""The left, upper, right and lower edge of a rectangle."""


@dataclass(frozen=True)
class PricedSystem:
    """A system with its value and its cost, which is None if a price is unknown."""

    name: str
    estimate: ChartEstimate
    cost: float | None

    @property
    def point(self) -> Point | None:
        """The cost and the value; None if one of them is unknown."""
        cost, value = drawable(self.cost), drawable(self.estimate.value)
        return None if cost is None or value is None else (cost, value)

    def describe(self) -> str:
        return f"{self.name}: {self.estimate.text()} for {format_dollars(self.cost)}"


def frontier_of(systems: Sequence[PricedSystem]) -> list[PricedSystem]:
    """Return the systems that are better than all systems of the same or a lower cost, cheapest first."""
    best_systems: list[PricedSystem] = []
    best = float("-inf")
    points = ((point, system) for system in systems if (point := system.point) is not None)
    for (_, value), system in sorted(points, key=lambda pair: (pair[0][0], -pair[0][1])):
        if value > best:
            best_systems.append(system)
            best = value
    return best_systems


def frontier(
    systems: Sequence[PricedSystem], frame: ChartFrame, *, x: str = "cost in dollars", y: str = RANKING_METRIC
) -> Markup:
    """Draw each system as a point with its interval; a note names systems without a cost or a value."""
    drawn = [system for system in systems if system.point is not None]
    omitted = [mark_invisible(system.name) for system in systems if system.point is None]
    if not drawn:
        return empty_chart(frame, "No system has both a cost and a value.")
    best = frontier_of(systems)
    drawing = Drawing(frame)
    x_axis = amount_axis(x, [system.cost for system in drawn])
    y_axis = Axis(y, *extent(values_of([system.estimate for system in drawn])))
    x_scale, y_scale = draw_axes(drawing, x_axis, y_axis, frame.look.width * 0.55)
    places = {
        id(system): (x_scale.at(point[0]), y_scale.at(point[1]))
        for system in drawn
        if (point := system.point) is not None
    }  # the coordinates of each system
    steps = _steps([places[id(system)] for system in best], x_scale.end)
    drawing.polyline(steps, "reference")
    for system in drawn:
        cost_x, value = places[id(system)]
        if system.estimate.ends is not None:
            low, high = y_scale.places(system.estimate.ends)
            drawing.whisker((cost_x, low), (cost_x, high), series=0, caps=(False, False), stroke_opacity=0.45)
        drawing.mark(cost_x, value, 0, system.describe(), role="mark" if system in best else "hollow")
    labelled = drawn if len(drawn) <= MAX_NAMES else best
    labels = [(system.name, places[id(system)]) for system in labelled]
    _draw_names(drawing, labels, list(places.values()), (x_scale, y_scale), steps)
    drawing.note("filled, on the line: no other system is better at the same or a lower cost")
    if omitted:
        drawing.note(f"without a cost or a value: {', '.join(omitted[:8])}" + " …" * (len(omitted) > 8))
    facts = [system.describe() for system in (*best, *(system for system in drawn if system not in best))]
    return drawing.svg(f"{y} against {x}, the frontier first: {join_facts(facts)}")


def _steps(best: Sequence[Point], end: float) -> list[Point]:
    """Return the points of the frontier's line, which is level up to the next better system."""
    points: list[Point] = []
    for x, y in best:
        if points:
            points.append((x, points[-1][1]))
        points.append((x, y))
    return [*points, (end, points[-1][1])]


def _draw_names(
    drawing: Drawing, labels: Sequence[tuple[str, Point]], marks: Sequence[Point], scales: tuple[Scale, Scale],
    steps: Sequence[Point],
) -> None:  # fmt: skip
    """Draw each name at the first of six places around its point where it hides nothing, or not at all.

    The tooltips of the points have all names.
    """
    (x_scale, y_scale), size = scales, drawing.size
    r = size * 0.45
    occupied: list[_Box] = [(x - r, y - r, x + r, y + r) for x, y in marks]
    occupied += [(min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)) for (x1, y1), (x2, y2) in pairwise(steps)]
    for name, (x, y) in labels:
        width = width_of(cut_to_width(mark_invisible(name), size * 11, size), size)
        for left, base in (
            (x + r * 1.4, y - r), (x - r * 1.4 - width, y - r),
            (x + r * 1.4, y + size), (x - r * 1.4 - width, y + size),
            (x - width / 2, y - size), (x - width / 2, y + size * 1.6),
        ):  # fmt: skip
            box = (left, base - size * 0.8, left + width, base + size * 0.2)
            is_inside = (
                left >= x_scale.start and box[2] <= drawing.width and y_scale.end <= box[1] and box[3] <= y_scale.start
            )
            if is_inside and not any(_overlap(box, occupied_box) for occupied_box in occupied):
                drawing.text(left, base, name, max_width=width)
                occupied.append(box)
                break


def _overlap(box: _Box, second: _Box) -> bool:
    return box[0] < second[2] and second[0] < box[2] and box[1] < second[3] and second[1] < box[3]
