"""A heat map: a number in each cell of a table, on a ground as deep as it is large; so is a confusion matrix."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from runner.pages.charts.drawing import Drawing, empty
from runner.pages.charts.labels import broken, fitted, known, listed, told, visible, width_of
from runner.pages.charts.styles import PAGE, Look

DEEPEST = 0.34
"""The largest number's share of the colour: ink on it keeps a contrast of 4.5 to 1, light or dark."""


def heat(
    rows: Sequence[str],
    columns: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    *,
    title: str,
    look: Look = PAGE,
    row_name: str = "",
    column_name: str = "",
    key: str = "",
) -> Markup:
    """Draw `cells[row][column]`, each on a ground between that of the least number and that of the largest."""
    if not rows or not columns:
        return empty(look, title, key=key)
    size = look.size
    words = [[told(value) for value in row] for row in cells]
    narrowest = max(width_of(word, size) for row in words for word in row) + size
    left = min(max(width_of(visible(name), size) for name in (*rows, row_name)), look.width * 0.45) + size * 0.8
    wide = max(narrowest, min((look.width - left - size * 0.2) / len(columns), size * 9))
    drawing = Drawing(look, title, left + wide * len(columns) + size * 0.2)
    if column_name:
        drawing.y += size * 1.3
        drawing.text(left, drawing.y - size * 0.2, column_name, "soft", most=drawing.width - left)
    named = [broken(visible(name), wide - size * 0.4, size) for name in columns]
    lines = max(map(len, named))
    drawing.y += size * (0.2 + 1.2 * lines)
    if row_name:
        drawing.text(0, drawing.y - size * 0.3, row_name, "soft", most=left - size * 0.8)
    for place, (name, parts) in enumerate(zip(columns, named, strict=True)):
        middle = left + (place + 0.5) * wide
        for line, part in enumerate(reversed(parts)):
            y = drawing.y - size * (0.3 + 1.2 * line)
            drawing.text(middle, y, part, anchor="middle", title=name if len(parts) > 1 else None)
    _cells(drawing, rows, cells, words, place=(left, wide), ends=_ends(cells))
    drawing.y += size * 0.2
    return drawing.svg(_told(rows, columns, words), key)


def _ends(cells: Sequence[Sequence[float | None]]) -> tuple[float, float]:
    every = [number for row in cells for value in row if (number := known(value)) is not None]
    return (min(every), max(every)) if every else (0.0, 1.0)


def _cells(
    drawing: Drawing,
    rows: Sequence[str],
    cells: Sequence[Sequence[float | None]],
    words: Sequence[Sequence[str]],
    *,
    place: tuple[float, float],
    ends: tuple[float, float],
) -> None:
    size, (left, wide) = drawing.size, place
    high, gap = size * 2.2, size * 0.12
    span = ends[1] - ends[0]
    for name, values, texts in zip(rows, cells, words, strict=True):
        drawing.text(0, drawing.y + high * 0.62, name, most=left - size * 0.8)
        for column, (value, text) in enumerate(zip(values, texts, strict=True)):
            x, number = left + column * wide, known(value)
            if number is None:
                drawing.rect(x, drawing.y, wide - gap, high - gap, "empty")
            else:
                share = min(max((number - ends[0]) / span, 0.0), 1.0) if span > 0 else 0.5
                drawing.rect(x, drawing.y, wide - gap, high - gap, "cell", fill_opacity=0.03 + share * (DEEPEST - 0.03))
            drawing.text(x + wide / 2, drawing.y + high * 0.62, fitted(text, wide, size), anchor="middle")
        drawing.y += high


def _told(rows: Sequence[str], columns: Sequence[str], words: Sequence[Sequence[str]]) -> str:
    return listed(
        f"{row}, {column}: {word}"
        for row, texts in zip(rows, words, strict=True)
        for column, word in zip(columns, texts, strict=True)
    )
