"""A heat map: a table with a number in each cell, on a background that is darker for larger numbers."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from runner.pages.charts.drawing import Drawing, empty_chart
from runner.pages.charts.labels import cut_to_width, drawable, format_number, join_facts, width_of, wrap_label
from runner.pages.charts.styles import ChartFrame

MIN_OPACITY, MAX_OPACITY = 0.03, 0.34
"""Opacity of the background of the smallest and the largest number. Text has a contrast of 4.5 to 1 on both."""


def heatmap(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    frame: ChartFrame,
    *,
    row_name: str = "",
    column_name: str = "",
) -> Markup:
    """Draw `cells[row][column]` as numbers; the opacity of a cell's background grows with its number."""
    if not rows or not columns:
        return empty_chart(frame)
    look, size = frame.look, frame.look.size
    texts = [[format_number(value) for value in row] for row in cells]
    min_column_width = max(width_of(text, size) for row in texts for text in row) + size
    left = min(max(width_of(name, size) for name in (*rows, row_name)), look.width * 0.45) + size * 0.8
    column_width = max(min_column_width, min((look.width - left - size * 0.2) / len(columns), size * 9))
    drawing = Drawing(frame, left + column_width * len(columns) + size * 0.2)
    if column_name:
        drawing.y += size * 1.3
        drawing.text(left, drawing.y - size * 0.2, column_name, "soft", max_width=drawing.width - left)
    wrapped_names = [wrap_label(name, column_width - size * 0.4, size) for name in columns]
    lines = max(map(len, wrapped_names))
    drawing.y += size * (0.2 + 1.2 * lines)
    if row_name:
        drawing.text(0, drawing.y - size * 0.3, row_name, "soft", max_width=left - size * 0.8)
    for index, (name, parts) in enumerate(zip(columns, wrapped_names, strict=True)):
        middle = left + (index + 0.5) * column_width
        for line, part in enumerate(reversed(parts)):
            y = drawing.y - size * (0.3 + 1.2 * line)
            drawing.text(middle, y, part, anchor="middle", title=name if len(parts) > 1 else None)
    _draw_cells(drawing, rows, cells, texts, place=(left, column_width), ends=_ends(cells))
    drawing.y += size * 0.2
    return drawing.svg(_description(rows, columns, texts))


def _ends(cells: Sequence[Sequence[float | None]]) -> tuple[float, float]:
    """Return the smallest and the largest number."""
    numbers = [number for row in cells for value in row if (number := drawable(value)) is not None]
    return (min(numbers), max(numbers)) if numbers else (0.0, 1.0)


def _draw_cells(
    drawing: Drawing,
    rows: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    texts: Sequence[Sequence[str]],
    *,
    place: tuple[float, float],
    ends: tuple[float, float],
) -> None:
    """Draw the rows; `place` has the x coordinate of the first column and the width of the columns."""
    size, (left, column_width) = drawing.size, place
    height, gap = size * 2.2, size * 0.12
    span = ends[1] - ends[0]
    for name, values, row_texts in zip(rows, cells, texts, strict=True):
        drawing.text(0, drawing.y + height * 0.62, name, max_width=left - size * 0.8)
        for column, (value, text) in enumerate(zip(values, row_texts, strict=True)):
            x, number = left + column * column_width, drawable(value)
            if number is None:
                drawing.rect(x, drawing.y, column_width - gap, height - gap, "empty")
            else:
                share = min(max((number - ends[0]) / span, 0.0), 1.0) if span > 0 else 0.5
                opacity = MIN_OPACITY + share * (MAX_OPACITY - MIN_OPACITY)
                drawing.rect(x, drawing.y, column_width - gap, height - gap, "cell", fill_opacity=opacity)
            fitted = cut_to_width(text, column_width, size)
            drawing.text(x + column_width / 2, drawing.y + height * 0.62, fitted, anchor="middle")
        drawing.y += height


def _description(rows: Sequence[str], columns: Sequence[str], texts: Sequence[Sequence[str]]) -> str:
    return join_facts(
        f"{row}, {column}: {text}"
        for row, row_texts in zip(rows, texts, strict=True)
        for column, text in zip(columns, row_texts, strict=True)
    )
