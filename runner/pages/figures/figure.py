"""The result of `nip-run plot`: the rows of a figure as CSV, JSON or a data frame, and its chart as SVG."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson
from markupsafe import Markup

from runner.base.text import csv_text
from runner.pages.charts.labels import drawable
from runner.pages.charts.styles import COLUMN, Look

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Encoding:
    """The columns to draw on each axis, so that other tools can draw the figure from its rows."""

    kind: Literal["points", "bars", "columns", "lines", "scatter"]
    x: str
    y: str
    low: str | None = None
    high: str | None = None
    series: str | None = None
    x_name: str = ""
    y_name: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure about some runs; `notes` are sentences about data that is missing in it."""

    name: str
    title: str
    rows: Sequence[Row]
    encoding: Encoding
    draw: Callable[[Look, str], Markup]
    notes: tuple[str, ...] = ()

    def svg(self, look: Look = COLUMN, title: str | None = None) -> Markup:
        """Return the chart as SVG. If you give a title, it is drawn above the chart."""
        return self.draw(look if title is None else replace(look, shows_title=True), title or self.title)

    def frame(self) -> list[dict[str, Any]]:
        """Return the rows, all with the same columns; missing values are None."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        return [{name: _finite(row.get(name)) for name in columns} for row in self.rows]

    def csv(self) -> str:
        """Return the rows as CSV with a header; several values in a cell are separated by spaces."""
        rows, text = self.frame(), io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(rows[0] if rows else ())
        writer.writerows([_cell(value) for value in row.values()] for row in rows)
        return text.getvalue()

    def json(self) -> bytes:
        facts = {"figure": self.name, "title": self.title, "rows": self.frame(), "notes": list(self.notes)}
        return orjson.dumps(facts, option=orjson.OPT_INDENT_2) + b"\n"


def _finite(value: Any) -> Any:
    return drawable(value) if isinstance(value, float) else value


def _cell(value: Any) -> Any:
    text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return csv_text(text) if isinstance(text, str) else text
