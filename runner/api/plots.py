"""Figures in Python, which notebooks display, and which can be converted to rows or to Altair or Matplotlib charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import RunError, UsageError, os_errors_as

if TYPE_CHECKING:
    from runner.pages.charts.styles import Look
    from runner.pages.figures.figure import Figure


class Plot:
    """A figure, as `RunResult.plot` returns it. A notebook displays it as SVG."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    @property
    def name(self) -> str:
        return self._figure.name

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on data that the figure does not show."""
        return self._figure.notes

    @property
    def rows(self) -> list[dict[str, Any]]:
        """The data of the figure; all rows have the same keys, and unknown values are None."""
        return self._figure.frame()

    def frame(self) -> Any:
        """Return the rows as a DataFrame of pandas.

        Raises:
            UsageError: pandas is not installed.
        """
        return _import_package("pandas").DataFrame(self.rows)

    def svg(self, width: str = "column", title: str | None = None) -> str:
        """Return the figure as SVG. `width` is `column` (3.25 in) or `page` (6.75 in) of a paper.

        Raises:
            UsageError: `width` is neither of these.
        """
        return str(self._figure.svg(_find_look(width), title))

    def save(self, path: str | Path, width: str = "column", title: str | None = None) -> None:
        """Write the figure to an SVG, PDF or PNG file. PDF and PNG need `pip install 'nip-run[figures]'`.

        Raises:
            UsageError: `path` does not end in .svg, .pdf or .png, the width is invalid, or a package is missing.
            RunError: the file cannot be written.
        """
        from runner.base.storage.atomic_files import atomic_write
        from runner.pages.figures.figure import IMAGE_SUFFIXES

        suffix = Path(path).suffix.lower()
        if suffix not in IMAGE_SUFFIXES:
            raise UsageError(
                f"{path}: the file name must end in .svg, .pdf or .png; rename the file, or use `rows` for the data"
            )
        content = self._figure.image(suffix, _find_look(width), title)
        with os_errors_as(RunError, f"cannot write {path}"):
            atomic_write(Path(path), content)

    def altair(self) -> Any:
        """Return a chart of Altair with the same rows, which you can modify.

        Raises:
            UsageError: Altair is not installed.
        """
        alt, encoding = _import_package("altair"), self._figure.encoding
        x, y, kind = encoding.x, encoding.y, encoding.kind
        is_horizontal, is_named = kind in ("points", "bars"), encoding.series is not None
        y_type = {"type": "nominal", "sort": None} if is_horizontal else {"type": "quantitative"}
        channels = {
            "x": alt.X(x, type="ordinal" if kind == "columns" else "quantitative", title=encoding.x_name or x),
            "y": alt.Y(y, title=encoding.y_name or y, **y_type),
            **({"color": alt.Color(encoding.series, type="nominal")} if is_named else {}),
        }
        base = alt.Chart(alt.Data(values=self.rows), title=self._figure.title)
        marks = {"bars": base.mark_bar, "columns": base.mark_bar, "lines": lambda: base.mark_line(point=True)}
        chart = marks.get(kind, lambda: base.mark_point(filled=True))().encode(**channels)
        if encoding.low is None or encoding.high is None:
            return chart
        low, high = encoding.low, encoding.high
        start, end = (
            (alt.X(low, type="quantitative"), alt.X2(high))
            if is_horizontal
            else (alt.Y(low, type="quantitative"), alt.Y2(high))
        )
        rule_channels = {**channels, "x": start, "x2": end} if is_horizontal else {**channels, "y": start, "y2": end}
        return chart + base.mark_rule().encode(**rule_channels)

    def matplotlib(self) -> Any:
        """Return a figure of Matplotlib with the same rows, independent of pyplot.

        Raises:
            UsageError: Matplotlib is not installed.
        """
        figure = _import_package("matplotlib.figure").Figure(figsize=(4.5, 3), layout="constrained")
        axes, encoding = figure.add_subplot(), self._figure.encoding
        rows_by_series: dict[Any, list[dict[str, Any]]] = {}
        for row in self.rows:
            if row[encoding.x] is not None and row[encoding.y] is not None:
                rows_by_series.setdefault(row[encoding.series] if encoding.series else None, []).append(row)
        for name, series_rows in rows_by_series.items():
            self._draw_series(axes, series_rows, {} if name is None else {"label": _escape_label(name)})
        axes.set(xlabel=encoding.x_name, ylabel=encoding.y_name, title=_escape_label(self._figure.title))
        if encoding.kind in ("points", "bars"):
            axes.invert_yaxis()
        if encoding.series is not None and len(rows_by_series) > 1:
            axes.legend()
        return figure

    def _draw_series(self, axes: Any, rows: Sequence[dict[str, Any]], style: Mapping[str, object]) -> None:
        """Draw the marks of one series, with its intervals if it has any, on axes of Matplotlib."""
        encoding = self._figure.encoding
        x, y = [row[encoding.x] for row in rows], [row[encoding.y] for row in rows]
        is_horizontal = encoding.kind in ("points", "bars")
        positions = [_escape_label(value) for value in y] if is_horizontal else y
        if encoding.kind == "bars":
            axes.barh(positions, x)
        elif encoding.kind == "columns":
            axes.bar(x, y)
        value_column = encoding.x if is_horizontal else encoding.y
        error = None if encoding.low is None else _error_lengths(rows, value_column, encoding.low, encoding.high)
        if encoding.kind in ("points", "lines", "scatter") or error is not None:
            marker = {"lines": "o-", "bars": "none"}.get(encoding.kind, "o")
            color = "black" if encoding.kind == "bars" else None
            errors = {"xerr" if is_horizontal else "yerr": error}
            axes.errorbar(x, positions, **errors, fmt=marker, capsize=2, ecolor=color, **style)

    def _repr_svg_(self) -> str:
        return self.svg(title=self._figure.title)

    def __repr__(self) -> str:
        return f"<Plot {self.name}: {len(self.rows)} rows>"


def _find_look(width: str) -> Look:
    """Return the look of a chart with a width by name. Raises as `Plot.svg`."""
    from runner.pages.charts.styles import PAPERS

    if width not in PAPERS:
        raise UsageError(f"no width {width!r}; choose one of: {', '.join(PAPERS)}")
    return PAPERS[width]


def _error_lengths(rows: Sequence[dict[str, Any]], value: str, low: str, high: str | None) -> list[list[float]]:
    """Return the distances from values to the ends of their intervals; 0 if an end is unknown."""
    return [
        [max(row[value] - row[low], 0.0) if row[low] is not None else 0.0 for row in rows],
        [max(row[high] - row[value], 0.0) if high is not None and row[high] is not None else 0.0 for row in rows],
    ]


def _escape_label(name: Any) -> str:
    """Return a label with hidden characters made visible, and `$` escaped, as it would start a formula."""
    from runner.pages.charts.labels import mark_invisible

    return mark_invisible(name).replace("$", r"\$")


def _import_package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"{package} is not installed; run `pip install {package}`") from error
