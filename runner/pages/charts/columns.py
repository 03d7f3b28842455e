"""A column chart of a distribution over whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from runner.pages.charts.axes import Axis, framed
from runner.pages.charts.drawing import Drawing, empty
from runner.pages.charts.labels import counted, known, listed
from runner.pages.charts.scales import Tick, extent
from runner.pages.charts.styles import PAGE, Look

MOST_COLUMNS = 40
"""The most columns of a chart. If there are more values, a column stands for several of them."""


def columns(
    counts: Sequence[tuple[float, float | None]],
    *,
    title: str,
    look: Look = PAGE,
    x: str = "",
    y: str = "games",
    key: str = "",
) -> Markup:
    """Draw the frequency of each whole number, such as rounds to a decision. Many values are grouped into columns."""
    counts_by_value = {int(at): n for at, count in counts if known(at) is not None and (n := known(count)) is not None}
    if not counts_by_value:
        return empty(look, title, key=key)
    first, last = min(counts_by_value), max(counts_by_value)
    values_per_column = -(-(last - first + 1) // MOST_COLUMNS)
    groups = [
        (start, sum(n for at, n in counts_by_value.items() if start <= at < start + values_per_column))
        for start in range(first, last + 1, values_per_column)
    ]
    drawing = Drawing(look, title)
    names = [
        (start, str(start) if values_per_column == 1 else f"{start}–{start + values_per_column - 1}")
        for start, _ in groups
    ]
    ticks = tuple(Tick(start + (values_per_column - 1) / 2, name) for start, name in names)
    high = extent([n for _, n in groups], low=0.0)
    axis = Axis(x, first - 0.6, names[-1][0] + values_per_column - 0.4, ticks)
    across, up = framed(drawing, axis, Axis(y, *high), look.width * 0.35)
    most = look.size * 3
    for (start, n), (_, name) in zip(groups, names, strict=True):
        left, right = across.at(start - 0.4), across.at(start + values_per_column - 0.6)
        middle, wide = (left + right) / 2, min(right - left, most)
        drawing.rect(
            middle - wide / 2, up.at(n), wide, up.start - up.at(n), "bar", series=0, title=f"{name}: {counted(n)}"
        )
    return drawing.svg(
        f"{y} by {x}: " + listed(f"{name}: {counted(n)}" for (_, n), (_, name) in zip(groups, names, strict=True)), key
    )
