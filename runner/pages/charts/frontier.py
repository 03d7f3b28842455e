"""Cost against accuracy: what each system costs and reaches, and the frontier of those that none beats in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from runner.pages.charts.axes import Axis, amounts, framed
from runner.pages.charts.drawing import Drawing, empty
from runner.pages.charts.estimates import ChartEstimate, values_of
from runner.pages.charts.labels import fitted, known, listed, money, visible, width_of
from runner.pages.charts.scales import Scale, extent
from runner.pages.charts.styles import PAGE, Look
from runner.results.metric_table import RANKING_METRIC

MOST_NAMES = 24
"""With more systems, those on the frontier alone are named."""

_Box = tuple[float, float, float, float]


@dataclass(frozen=True)
class Offer:
    """A system: what it reaches, and what that costs; None where a price is not known."""

    name: str
    reached: ChartEstimate
    cost: float | None


def frontier_of(offers: Sequence[Offer]) -> list[Offer]:
    """Those than which none is as cheap and better, or as good and cheaper; the cheapest first."""
    found: list[Offer] = []
    for one in sorted(_drawn(offers), key=lambda one: (known(one.cost), -(known(one.reached.value) or 0.0))):
        best = known(found[-1].reached.value) if found else None
        value = known(one.reached.value)
        if value is not None and (best is None or value > best):
            found.append(one)
    return found


def frontier(
    offers: Sequence[Offer],
    *,
    title: str,
    look: Look = PAGE,
    x: str = "cost in dollars",
    y: str = RANKING_METRIC,
    cost: Callable[[Any], str] = money,
    domain: tuple[float, float] | None = None,
    key: str = "",
) -> Markup:
    """Points with the intervals of what they reach; what has no cost or no value is named below."""
    drawn, left_out = _drawn(offers), [one.name for one in offers if not _is_drawn(one)]
    if not drawn:
        return empty(look, title, "No system has both a cost and a value.", key)
    best = frontier_of(offers)
    drawing = Drawing(look, title)
    ends = domain or extent(values_of([one.reached for one in drawn]))
    across, up = framed(drawing, amounts(x, [one.cost for one in drawn]), Axis(y, *ends), look.width * 0.55)
    steps = _steps(best, across, up)
    drawing.polyline(steps, "reference")
    for one in drawn:
        _point(drawing, one, across, up, cost, is_best=one in best)
    _names(drawing, drawn if len(drawn) <= MOST_NAMES else best, drawn, (across, up), steps)
    drawing.note("filled, and along the line: no other is as cheap and better")
    if left_out:
        drawing.note(f"without a cost or a value: {', '.join(map(visible, left_out[:8]))}" + " …" * (len(left_out) > 8))
    facts = (
        f"{one.name}: {one.reached.told()} for {cost(one.cost)}"
        for one in (*best, *(o for o in drawn if o not in best))
    )
    return drawing.svg(f"{y} against {x}, the frontier first: {listed(facts)}", key)


def _drawn(offers: Sequence[Offer]) -> list[Offer]:
    return [one for one in offers if _is_drawn(one)]


def _is_drawn(one: Offer) -> bool:
    return known(one.cost) is not None and known(one.reached.value) is not None


def _place(one: Offer, across: Scale, up: Scale) -> tuple[float, float]:
    return across.at(known(one.cost) or 0.0), up.at(known(one.reached.value) or 0.0)


def _steps(best: Sequence[Offer], across: Scale, up: Scale) -> list[tuple[float, float]]:
    """What can be had for each cost: level up to the next system that reaches more."""
    points: list[tuple[float, float]] = []
    for one in best:
        x, y = _place(one, across, up)
        if points:
            points.append((x, points[-1][1]))
        points.append((x, y))
    points.append((across.end, points[-1][1]))
    return points


def _point(
    drawing: Drawing, one: Offer, across: Scale, up: Scale, cost: Callable[[Any], str], *, is_best: bool
) -> None:
    x, y = _place(one, across, up)
    series = 0
    if (ends := one.reached.ends) is not None:
        low, high = up.at(up.low if ends[0] is None else ends[0]), up.at(up.high if ends[1] is None else ends[1])
        drawing.line(x, low, x, high, "whisker", series=series, stroke_opacity=0.45)
    about = f"{one.name}: {one.reached.told()} for {cost(one.cost)}"
    drawing.mark(x, y, series, about, role="mark" if is_best else "hollow")


def _names(
    drawing: Drawing,
    named: Sequence[Offer],
    drawn: Sequence[Offer],
    scales: tuple[Scale, Scale],
    steps: Sequence[tuple[float, float]],
) -> None:
    """Names beside their points, where they hide no other; what finds no room has its name as the point's title."""
    across, up = scales
    size = drawing.size
    r = size * 0.45
    taken: list[_Box] = [(x - r, y - r, x + r, y + r) for x, y in (_place(one, across, up) for one in drawn)]
    taken += [(min(x, w), min(y, z), max(x, w), max(y, z)) for (x, y), (w, z) in pairwise(steps)]
    for one in named:
        x, y = _place(one, across, up)
        words = fitted(visible(one.name), size * 11, size)
        wide = width_of(words, size)
        for left, base in (
            (x + r * 1.4, y - r), (x - r * 1.4 - wide, y - r), (x + r * 1.4, y + size), (x - r * 1.4 - wide, y + size),
            (x - wide / 2, y - size), (x - wide / 2, y + size * 1.6),
        ):  # fmt: skip
            box = (left, base - size * 0.8, left + wide, base + size * 0.2)
            is_inside = left >= across.start and box[2] <= drawing.width and up.end <= box[1] and box[3] <= up.start
            if is_inside and not any(_meet(box, other) for other in taken):
                drawing.text(left, base, one.name, most=wide)
                taken.append(box)
                break


def _meet(one: _Box, other: _Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]
