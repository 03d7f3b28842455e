"""A column chart of a distribution over whole numbers, such as the number of games by rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from runner.pages.charts.axes import Axis, draw_axes
from runner.pages.charts.drawing import Drawing, empty_chart
from runner.pages.charts.labels import drawable, format_count, join_facts
from runner.pages.charts.scales import Tick, extent
from runner.pages.charts.styles import ChartFrame

MAX_COLUMNS = 40
"""Maximum number of columns. If there are more values, each column stands for several values."""


@dataclass(frozen=True)
class _Column:
    """A column: its first value, the text of its value or values, and its count."""

    start: int
    name: str
    count: float

    @property
    def text(self) -> str:
        return f"{self.name}: {format_count(self.count)}"


def columns(
    counts: Sequence[tuple[float, float | None]], frame: ChartFrame, *, x: str = "", y: str = "games"
) -> Markup:
    """Draw the count of each whole number, such as the games for each number of rounds."""
    pairs = [(int(number), drawable(count)) for number, count in counts if drawable(number) is not None]
    counts_by_number = {number: count for number, count in pairs if count is not None}
    if not counts_by_number:
        return empty_chart(frame)
    step = math.ceil((max(counts_by_number) - min(counts_by_number) + 1) / MAX_COLUMNS)
    drawn = _group(counts_by_number, step)
    drawing, look = Drawing(frame), frame.look
    ticks = tuple(Tick(column.start + (step - 1) / 2, column.name) for column in drawn)
    x_axis = Axis(x, drawn[0].start - 0.6, drawn[-1].start + step - 0.4, ticks)
    y_axis = Axis(y, *extent([column.count for column in drawn], low=0.0))
    x_scale, y_scale = draw_axes(drawing, x_axis, y_axis, look.width * 0.35)
    for column in drawn:
        left, right = x_scale.at(column.start - 0.4), x_scale.at(column.start + step - 0.6)
        width, top = min(right - left, look.size * 3), y_scale.at(column.count)
        drawing.rect((left + right - width) / 2, top, width, y_scale.start - top, "bar", series=0, title=column.text)
    return drawing.svg(f"{y} by {x}: {join_facts(column.text for column in drawn)}")


def _group(counts_by_number: Mapping[int, float], step: int) -> list[_Column]:
    """Return a column for each `step` consecutive whole numbers."""
    drawn = []
    for start in range(min(counts_by_number), max(counts_by_number) + 1, step):
        count = sum(n for number, n in counts_by_number.items() if start <= number < start + step)
        drawn.append(_Column(start, str(start) if step == 1 else f"{start}–{start + step - 1}", count))
    return drawn
