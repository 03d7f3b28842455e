"""A figure in Python: shown by a notebook as it is, as rows, and as a chart of Altair or Matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import RunError, UsageError

if TYPE_CHECKING:
    from runner.pages.figures.figure import Figure


class Plot:
    """A figure, as `RunResult.plot` gives it. A notebook shows it as SVG."""

    def __init__(self, figure: Figure) -> None:
        self._figure = figure

    @property
    def name(self) -> str:
        return self._figure.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What it could not show."""
        return self._figure.notes

    @property
    def rows(self) -> list[dict[str, Any]]:
        """What it is drawn from, all with the same keys; what is not known is None."""
        return self._figure.frame()

    def frame(self) -> Any:
        """The rows as a DataFrame of pandas.

        Raises:
            UsageError: pandas is not installed.
        """
        return _package("pandas").DataFrame(self.rows)

    def svg(self, width: str = "column", title: str | None = None) -> str:
        """For a paper's `column` (3.25 in) or `page` (6.75 in); a title that is given is drawn above.

        Raises:
            UsageError: another width.
        """
        from runner.pages.charts.styles import PAPERS

        if width not in PAPERS:
            raise UsageError(f"no width {width!r}; there are: {', '.join(PAPERS)}")
        return str(self._figure.svg(PAPERS[width], title))

    def save(self, path: str | Path, width: str = "column", title: str | None = None) -> None:
        """Write it to FILE.svg.

        Raises:
            UsageError: the name does not end in .svg, or another width.
            RunError: it cannot be written.
        """
        from runner.base.storage.atomic_files import atomic_write

        if Path(path).suffix.lower() != ".svg":
            raise UsageError(f"{path}: the name of a figure ends in .svg; `rows` are its numbers")
        try:
            atomic_write(Path(path), f"{self.svg(width, title)}\n".encode())
        except OSError as error:
            raise RunError(f"cannot write {path}: {error.strerror}") from error

    def altair(self) -> Any:
        """A chart of Altair with the same rows, to be changed further.

        Raises:
            UsageError: Altair is not installed.
        """
        alt, encoding = _package("altair"), self._figure.encoding
        x, y, kind = encoding.x, encoding.y, encoding.kind
        across, is_named = kind in ("points", "bars"), encoding.series is not None
        up = {"type": "nominal", "sort": None} if across else {"type": "quantitative"}
        channels = {
            "x": alt.X(x, type="ordinal" if kind == "columns" else "quantitative", title=encoding.x_name or x),
            "y": alt.Y(y, title=encoding.y_name or y, **up),
            **({"color": alt.Color(encoding.series, type="nominal")} if is_named else {}),
        }
        base = alt.Chart(alt.Data(values=self.rows), title=self._figure.title)
        marked = {"bars": base.mark_bar, "columns": base.mark_bar, "lines": lambda: base.mark_line(point=True)}
        chart = marked.get(kind, lambda: base.mark_point(filled=True))().encode(**channels)
        if encoding.low is None or encoding.high is None:
            return chart
        low, high = encoding.low, encoding.high
        start, end = (
            (alt.X(low, type="quantitative"), alt.X2(high))
            if across
            else (alt.Y(low, type="quantitative"), alt.Y2(high))
        )
        ends = {**channels, "x": start, "x2": end} if across else {**channels, "y": start, "y2": end}
        return chart + base.mark_rule().encode(**ends)

    def matplotlib(self) -> Any:
        """A figure of Matplotlib with the same rows, apart from pyplot.

        Raises:
            UsageError: Matplotlib is not installed.
        """
        figure = _package("matplotlib.figure").Figure(figsize=(4.5, 3), layout="constrained")
        axes, encoding = figure.add_subplot(), self._figure.encoding
        across, rows = encoding.kind in ("points", "bars"), self.rows
        named: dict[Any, list[dict[str, Any]]] = {}
        for row in rows:
            if row[encoding.x] is not None and row[encoding.y] is not None:
                named.setdefault(row[encoding.series] if encoding.series else None, []).append(row)
        for name, drawn in named.items():
            x, y = [row[encoding.x] for row in drawn], [row[encoding.y] for row in drawn]
            style = {} if name is None else {"label": _plain(name)}
            if encoding.kind == "bars":
                axes.barh([_plain(one) for one in y], x)
            elif encoding.kind == "columns":
                axes.bar(x, y)
            error = (
                None
                if encoding.low is None
                else _ends(drawn, encoding.x if across else encoding.y, encoding.low, encoding.high)
            )
            if encoding.kind in ("points", "lines", "scatter") or error is not None:
                form = {"lines": "o-", "bars": "none"}.get(encoding.kind, "o")
                places = [_plain(one) for one in y] if across else y
                axes.errorbar(
                    x,
                    places,
                    **{"xerr" if across else "yerr": error},
                    fmt=form,
                    capsize=2,
                    ecolor="black" if encoding.kind == "bars" else None,
                    **style,
                )
        axes.set(xlabel=encoding.x_name, ylabel=encoding.y_name, title=_plain(self._figure.title))
        if across:
            axes.invert_yaxis()
        if encoding.series is not None and len(named) > 1:
            axes.legend()
        return figure

    def _repr_svg_(self) -> str:
        return self.svg(title=self._figure.title)

    def __repr__(self) -> str:
        return f"<Plot {self.name}: {len(self.rows)} rows>"


def _ends(rows: Sequence[dict[str, Any]], value: str, low: str, high: str | None) -> list[list[float]]:
    """How far the ends of intervals are from their values; an end that is not known is at the value."""
    return [
        [max(row[value] - row[low], 0.0) if row[low] is not None else 0.0 for row in rows],
        [max(row[high] - row[value], 0.0) if high is not None and row[high] is not None else 0.0 for row in rows],
    ]


def _plain(name: Any) -> str:
    """A name in which a dollar begins no formula, and nothing is hidden."""
    from runner.pages.charts.labels import visible

    return visible(name).replace("$", r"\$")


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise UsageError(f"{package} is not installed; `pip install {package}`") from error
