"""Cost against accuracy: what each system costs and reaches, and the frontier of those that none beats in both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from runner.pages.charts.axes import Axis, amounts, framed
from runner.pages.charts.drawing import Drawing, Point, empty
from runner.pages.charts.estimates import ChartEstimate, values_of
from runner.pages.charts.labels import fitted, known, listed, money, visible, width_of
from runner.pages.charts.scales import Scale, extent
from runner.pages.charts.styles import PAGE, Look
from runner.results.metric_table import RANKING_METRIC

MOST_NAMES = 24
"""With more systems, only those on the frontier are named."""

_Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Offer:
    """A system: what it reaches, and what that costs; None if a price is unknown."""

    name: str
    reached: ChartEstimate
    cost: float | None

    @property
    def point(self) -> Point | None:
        """The cost and the value; None if one of them is unknown."""
        cost, value = known(self.cost), known(self.reached.value)
        return None if cost is None or value is None else (cost, value)

    def told(self) -> str:
        return f"{self.name}: {self.reached.told()} for {money(self.cost)}"


def frontier_of(offers: Sequence[Offer]) -> list[Offer]:
    """Return the systems that no other beats at the same or a lower cost, the cheapest first."""
    found: list[Offer] = []
    best = float("-inf")
    points = ((point, one) for one in offers if (point := one.point) is not None)
    for (_, value), one in sorted(points, key=lambda pair: (pair[0][0], -pair[0][1])):
        if value > best:
            found.append(one)
            best = value
    return found


def frontier(
    offers: Sequence[Offer],
    *,
    title: str,
    look: Look = PAGE,
    x: str = "cost in dollars",
    y: str = RANKING_METRIC,
    key: str = "",
) -> Markup:
    """Draw points with the intervals of what they reach; systems without a cost or a value are named below."""
    drawn = [one for one in offers if one.point is not None]
    left_out = [visible(one.name) for one in offers if one.point is None]
    if not drawn:
        return empty(look, title, "No system has both a cost and a value.", key)
    best = frontier_of(offers)
    drawing = Drawing(look, title)
    ends = extent(values_of([one.reached for one in drawn]))
    across, up = framed(drawing, amounts(x, [one.cost for one in drawn]), Axis(y, *ends), look.width * 0.55)
    places = {id(one): (across.at(point[0]), up.at(point[1])) for one in drawn if (point := one.point) is not None}
    steps = _steps([places[id(one)] for one in best], across.end)
    drawing.polyline(steps, "reference")
    for one in drawn:
        at, value = places[id(one)]
        if one.reached.ends is not None:
            low, high = up.places(one.reached.ends)
            drawing.whisker(at, low, at, high, series=0, caps=(False, False), stroke_opacity=0.45)
        drawing.mark(at, value, 0, one.told(), role="mark" if one in best else "hollow")
    named = drawn if len(drawn) <= MOST_NAMES else best
    _draw_names(drawing, [(one.name, places[id(one)]) for one in named], list(places.values()), (across, up), steps)
    drawing.note("filled, and along the line: no other is as cheap and better")
    if left_out:
        drawing.note(f"without a cost or a value: {', '.join(left_out[:8])}" + " …" * (len(left_out) > 8))
    facts = [one.told() for one in (*best, *(one for one in drawn if one not in best))]
    return drawing.svg(f"{y} against {x}, the frontier first: {listed(facts)}", key)


def _steps(best: Sequence[Point], end: float) -> list[Point]:
    """Return what can be had for each cost: level up to the next system that reaches more."""
    points: list[Point] = []
    for x, y in best:
        if points:
            points.append((x, points[-1][1]))
        points.append((x, y))
    return [*points, (end, points[-1][1])]


def _draw_names(
    drawing: Drawing,
    named: Sequence[tuple[str, Point]],
    marks: Sequence[Point],
    scales: tuple[Scale, Scale],
    steps: Sequence[Point],
) -> None:
    """Draw names beside their points if they hide nothing there; all others are in the titles of the points."""
    (across, up), size = scales, drawing.size
    r = size * 0.45
    taken: list[_Box] = [(x - r, y - r, x + r, y + r) for x, y in marks]
    taken += [(min(x, w), min(y, z), max(x, w), max(y, z)) for (x, y), (w, z) in pairwise(steps)]
    for name, (x, y) in named:
        wide = width_of(fitted(visible(name), size * 11, size), size)
        for left, base in (
            (x + r * 1.4, y - r), (x - r * 1.4 - wide, y - r), (x + r * 1.4, y + size), (x - r * 1.4 - wide, y + size),
            (x - wide / 2, y - size), (x - wide / 2, y + size * 1.6),
        ):  # fmt: skip
            box = (left, base - size * 0.8, left + wide, base + size * 0.2)
            is_inside = left >= across.start and box[2] <= drawing.width and up.end <= box[1] and box[3] <= up.start
            if is_inside and not any(_overlap(box, other) for other in taken):
                drawing.text(left, base, name, most=wide)
                taken.append(box)
                break


def _overlap(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
