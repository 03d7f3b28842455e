"""A column chart of a distribution over whole numbers."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from runner.pages.charts.axes import Axis, draw_axes
from runner.pages.charts.drawing import Drawing, empty_chart
from runner.pages.charts.labels import drawable, format_count, join_facts
from runner.pages.charts.scales import Tick, extent
from runner.pages.charts.styles import PAGE, Look

MAX_COLUMNS = 40
"""Maximum number of columns. If there are more values, each column stands for several values."""


def columns(
    counts: Sequence[tuple[float, float | None]],
    *,
    title: str,
    look: Look = PAGE,
    x: str = "",
    y: str = "games",
    key: str = "",
) -> Markup:
    """Draw the frequency of each whole number, such as the rounds to a decision; many values are grouped."""
    frequencies = {
        int(at): n for at, count in counts if drawable(at) is not None and (n := drawable(count)) is not None
    }
    if not frequencies:
        return empty_chart(look, title, key=key)
    first, last = min(frequencies), max(frequencies)
    step = -(-(last - first + 1) // MAX_COLUMNS)
    groups = [
        (start, sum(n for at, n in frequencies.items() if start <= at < start + step))
        for start in range(first, last + 1, step)
    ]
    drawing = Drawing(look, title)
    names = [(start, str(start) if step == 1 else f"{start}–{start + step - 1}") for start, _ in groups]
    ticks = tuple(Tick(start + (step - 1) / 2, name) for start, name in names)
    ends = extent([n for _, n in groups], low=0.0)
    axis = Axis(x, first - 0.6, names[-1][0] + step - 0.4, ticks)
    across, up = draw_axes(drawing, axis, Axis(y, *ends), look.width * 0.35)
    max_width = look.size * 3
    for (start, n), (_, name) in zip(groups, names, strict=True):
        left, right = across.at(start - 0.4), across.at(start + step - 0.6)
        middle, width = (left + right) / 2, min(right - left, max_width)
        drawing.rect(
            middle - width / 2,
            up.at(n),
            width,
            up.start - up.at(n),
            "bar",
            series=0,
            title=f"{name}: {format_count(n)}",
        )
    return drawing.svg(
        f"{y} by {x}: "
        + join_facts(f"{name}: {format_count(n)}" for (_, n), (_, name) in zip(groups, names, strict=True)),
        key,
    )
