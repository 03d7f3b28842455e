"""A chart of cost against accuracy, with the frontier: the systems that no system of the same or a lower cost beats."""

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
from runner.pages.charts.styles import PAGE, Look
from runner.results.metric_definitions import RANKING_METRIC

MAX_NAMES = 24
"""Maximum number of systems that all have names. If there are more, only systems on the frontier have names."""

_Box = tuple[float, float, float, float]
"""The left, upper, right and lower edge of a rectangle."""


@dataclass(frozen=True)
class Offer:
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


def frontier_of(offers: Sequence[Offer]) -> list[Offer]:
    """Return the systems that are better than all systems of the same or a lower cost, cheapest first."""
    best_offers: list[Offer] = []
    best = float("-inf")
    points = ((point, offer) for offer in offers if (point := offer.point) is not None)
    for (_, value), offer in sorted(points, key=lambda pair: (pair[0][0], -pair[0][1])):
        if value > best:
            best_offers.append(offer)
            best = value
    return best_offers


def frontier(
    offers: Sequence[Offer],
    *,
    title: str,
    look: Look = PAGE,
    x: str = "cost in dollars",
    y: str = RANKING_METRIC,
    key: str = "",
) -> Markup:
    """Draw each system as a point with its interval; a note names systems without a cost or a value."""
    drawn = [offer for offer in offers if offer.point is not None]
    omitted = [mark_invisible(offer.name) for offer in offers if offer.point is None]
    if not drawn:
        return empty_chart(look, title, "No system has both a cost and a value.", key)
    best = frontier_of(offers)
    drawing = Drawing(look, title)
    ends = extent(values_of([offer.estimate for offer in drawn]))
    across, up = draw_axes(drawing, amount_axis(x, [offer.cost for offer in drawn]), Axis(y, *ends), look.width * 0.55)
    places = {
        id(offer): (across.at(point[0]), up.at(point[1])) for offer in drawn if (point := offer.point) is not None
    }  # the coordinates of each system
    steps = _steps([places[id(offer)] for offer in best], across.end)
    drawing.polyline(steps, "reference")
    for offer in drawn:
        at, value = places[id(offer)]
        if offer.estimate.ends is not None:
            low, high = up.places(offer.estimate.ends)
            drawing.whisker(at, low, at, high, series=0, caps=(False, False), stroke_opacity=0.45)
        drawing.mark(at, value, 0, offer.describe(), role="mark" if offer in best else "hollow")
    labelled = drawn if len(drawn) <= MAX_NAMES else best
    _draw_names(
        drawing, [(offer.name, places[id(offer)]) for offer in labelled], list(places.values()), (across, up), steps
    )
    drawing.note("filled, on the line: no other system is better at the same or a lower cost")
    if omitted:
        drawing.note(f"without a cost or a value: {', '.join(omitted[:8])}" + " …" * (len(omitted) > 8))
    facts = [offer.describe() for offer in (*best, *(offer for offer in drawn if offer not in best))]
    return drawing.svg(f"{y} against {x}, the frontier first: {join_facts(facts)}", key)


def _steps(best: Sequence[Point], end: float) -> list[Point]:
    """Return the points of the frontier's line, which is level up to the next better system."""
    points: list[Point] = []
    for x, y in best:
        if points:
            points.append((x, points[-1][1]))
        points.append((x, y))
    return [*points, (end, points[-1][1])]


def _draw_names(
    drawing: Drawing,
    labels: Sequence[tuple[str, Point]],
    marks: Sequence[Point],
    scales: tuple[Scale, Scale],
    steps: Sequence[Point],
) -> None:
    """Draw each name at the first of six places around its point where it hides nothing, or not at all.

    The tooltips of the points have all names.
    """
    (across, up), size = scales, drawing.size
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
            is_inside = left >= across.start and box[2] <= drawing.width and up.end <= box[1] and box[3] <= up.start
            if is_inside and not any(_overlap(box, occupied_box) for occupied_box in occupied):
                drawing.text(left, base, name, max_width=width)
                occupied.append(box)
                break


def _overlap(box: _Box, second: _Box) -> bool:
    return box[0] < second[2] and second[0] < box[2] and box[1] < second[3] and second[1] < box[3]
