"""The result of `nip-run plot`: the rows of a figure as CSV, JSON or a data frame, and its chart as SVG, PDF or PNG."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import orjson
from markupsafe import Markup

from runner.base.errors import UsageError
from runner.base.text import csv_text
from runner.pages.charts.labels import drawable
from runner.pages.charts.styles import COLUMN, POINTS_AN_INCH, ChartFrame, Look

Row = Mapping[str, Any]
IMAGE_SUFFIXES = (".svg", ".pdf", ".png")
PIXELS_AN_INCH = 300
"""The resolution of PNG files."""


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
    draw: Callable[[ChartFrame], Markup]
    notes: tuple[str, ...] = ()

    def svg(self, look: Look = COLUMN, title: str | None = None) -> Markup:
        """Return the chart as SVG. If you give a title, it is drawn above the chart."""
        return self.draw(ChartFrame(title or self.title, look if title is None else replace(look, shows_title=True)))

    def image(self, suffix: str, look: Look = COLUMN, title: str | None = None) -> bytes:
        """Return the chart as the content of a file whose name ends in `suffix`, one of `IMAGE_SUFFIXES`.

        Raises:
            UsageError: the package that writes PDF and PNG is not installed.
        """
        svg = f"{self.svg(look, title)}\n"
        return svg.encode() if suffix == ".svg" else _convert_svg(svg, suffix)

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


def _convert_svg(svg: str, suffix: str) -> bytes:
    try:
        import vl_convert
    except ImportError as error:
        raise UsageError(
            f"{suffix} files need the package vl-convert-python ({error}); run pip install 'nip-run[figures]', or "
            "write an .svg file"
        ) from error

    def to_points(size: re.Match[str]) -> str:
        return f'{size[1]}="{float(size[2]) * POINTS_AN_INCH:g}"'

    # vl_convert makes each pixel of the SVG one point long. The first two lengths are those of the whole chart.
    svg_in_points = re.sub(r'\b(width|height)="([\d.]+)in"', to_points, svg, count=2)
    if suffix == ".pdf":
        return bytes(vl_convert.svg_to_pdf(svg_in_points))
    return bytes(vl_convert.svg_to_png(svg_in_points, ppi=PIXELS_AN_INCH))


def _finite(value: Any) -> Any:
    return drawable(value) if isinstance(value, float) else value


def _cell(value: Any) -> Any:
    text = " ".join(map(str, value)) if isinstance(value, (list, tuple)) else value
    return csv_text(text) if isinstance(text, str) else text
