"""An SVG chart under construction, which all charts use to add lines, shapes and texts.

The role of an element, such as `axis` or `bar`, decides its colors and line width (`runner.pages.charts.styles`). Texts
are escaped, and the chart has a description for screen readers.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from runner.pages.charts.labels import cut_to_width, mark_invisible, width_of
from runner.pages.charts.styles import PAGE, POINTS_AN_INCH, SERIES, ChartFrame, attributes

_FONTS = "Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif"
Point = tuple[float, float]


class Drawing:
    """Collects the elements of a chart from top to bottom; `y` is the top of the free space below them."""

    def __init__(self, frame: ChartFrame, width: float | None = None) -> None:
        self.look, self.size = frame.look, frame.look.size
        self.width = max(self.look.width, width or 0.0)
        self.y = 0.0
        self._title, self._key = mark_invisible(frame.title), frame.key
        self._parts: list[Markup] = []
        if self.look.shows_title:
            self.y += self.size * 1.4
            self.text(0, self.y - self.size * 0.3, frame.title, max_width=self.width, bold=True)

    def add(
        self,
        tag: str,
        role: str,
        series: int | None = None,
        title: str | None = None,
        content: str = "",
        **extra: str | float,
    ) -> None:
        """Add an element; `title` is its tooltip."""
        extra_attributes = {name.replace("_", "-"): value for name, value in extra.items()}
        attributes_text = _attributes_text({**attributes(self.look, role, series), **extra_attributes})
        head = Markup("") if title is None else Markup("<title>{}</title>").format(mark_invisible(title))
        shape = Markup("<{0} {1}>{2}{3}</{0}>") if head or content else Markup("<{0} {1}/>")
        self._parts.append(shape.format(tag, attributes_text, head, content))

    def text(
        self,
        x: float,
        y: float,
        text: Any,
        role: str = "text",
        *,
        anchor: str = "start",
        max_width: float | None = None,
        title: str | None = None,
        bold: bool = False,
        series: int | None = None,
    ) -> None:
        """Add a line of text. A text wider than `max_width` is cut, and its tooltip has the full text."""
        full_text = mark_invisible(text)
        text_size = self.size * (1.05 if bold else 1)
        fitted_text = full_text if max_width is None else cut_to_width(full_text, max_width, text_size)
        tooltip = full_text if title is None and fitted_text != full_text else title
        anchored = {} if anchor == "start" else {"text_anchor": anchor}
        weight = {"font_weight": "600"} if bold else {}
        self.add("text", role, series, tooltip, fitted_text, x=x, y=y, **anchored, **weight)

    def line(
        self, x1: float, y1: float, x2: float, y2: float, role: str, *, series: int | None = None, **extra: Any
    ) -> None:
        self.add("line", role, series, x1=x1, y1=y1, x2=x2, y2=y2, **extra)

    def whisker(
        self,
        start: Point,
        end: Point,
        role: str = "whisker",
        *,
        series: int | None = None,
        caps: tuple[bool, ...] = (True, True),
        **extra: Any,
    ) -> None:
        """Draw a line between the ends of an interval, with a short bar across each end that has a cap."""
        half = self.size * 0.27
        dx, dy = (0.0, half) if start[1] == end[1] else (half, 0.0)
        self.line(*start, *end, role, series=series, **extra)
        for (x, y), has_cap in zip((start, end), caps, strict=True):
            if has_cap:
                self.line(x - dx, y - dy, x + dx, y + dy, role, series=series)

    def rect(
        self, x: float, y: float, width: float, height: float, role: str, *, series: int | None = None, **extra: Any
    ) -> None:
        self.add("rect", role, series, x=x, y=y, width=max(width, 0.0), height=max(height, 0.0), **extra)

    def polyline(
        self, points: Sequence[Point], role: str, series: int | None = None, title: str | None = None
    ) -> None:  # fmt: skip
        self.add("polyline", role, series, title, points=_points(points))

    def polygon(self, points: Sequence[Point], role: str, series: int | None = None, title: str | None = None) -> None:
        self.add("polygon", role, series, title, points=_points(points))

    def mark(self, x: float, y: float, series: int = 0, title: str | None = None, *, role: str = "mark") -> None:
        """Draw a point in the shape of its series."""
        r = self.size * 0.3
        # The corners of the shape of each series, in units of r; series 0 is a circle.
        corners: dict[int, Sequence[Point]] = {
            1: [(-0.9, -0.9), (0.9, -0.9), (0.9, 0.9), (-0.9, 0.9)],
            2: [(0, -1.2), (1.1, 0.8), (-1.1, 0.8)],
            3: [(0, -1.3), (1.2, 0), (0, 1.3), (-1.2, 0)],
            4: [(0, 1.2), (1.1, -0.8), (-1.1, -0.8)],
            5: [(-1.2, -0.4), (-0.4, -0.4), (-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4),
                (0.4, 0.4), (0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4)],
        }  # fmt: skip
        shape = corners.get(series % SERIES)
        if shape is None:
            self.add("circle", role, series, title, cx=x, cy=y, r=r)
        else:
            self.polygon([(x + r * dx, y + r * dy) for dx, dy in shape], role, series, title)

    def legend(self, names: Sequence[str]) -> None:
        """Draw the name of each series after a sample of its line, in as many rows as necessary."""
        x, gap, short_line = 0.0, self.size, self.size * 1.7
        self.y += self.size * 1.2
        for series, name in enumerate(names):
            name_width = self.width - short_line - gap
            item_width = short_line + self.size * 0.4 + min(width_of(name, self.size), name_width)
            if x and x + item_width > self.width:
                x, self.y = 0.0, self.y + self.size * 1.4
            middle = self.y - self.size * 0.35
            self.line(x, middle, x + short_line, middle, "line", series=series)
            self.mark(x + short_line / 2, middle, series)
            self.text(x + short_line + self.size * 0.4, self.y, name, max_width=name_width)
            x += item_width + gap
        self.y += self.size * 0.6

    def note(self, text: str) -> None:
        """Add a note below the chart, wrapped into several lines if needed."""
        if not text:
            return
        line = ""
        for part in mark_invisible(text).split(" "):
            if line and width_of(f"{line} {part}", self.size) > self.width:
                self._note(line)
                line = part
            else:
                line = f"{line} {part}".strip()
        self._note(line)

    def _note(self, line: str) -> None:
        self.y += self.size * 1.4
        self.text(0, self.y - self.size * 0.3, line, "soft", max_width=self.width)

    def svg(self, description: str) -> Markup:
        """Return the chart as SVG."""
        height = max(self.y, self.size)
        body = Markup("\n").join(self._parts)
        full_description = mark_invisible(description)
        name = hashlib.sha256("\0".join((self._key, self._title, full_description, str(body))).encode()).hexdigest()[
            :12
        ]
        box: dict[str, str | float] = {
            "viewBox": f"0 0 {_number(self.width)} {_number(height)}",
            "font-size": self.size,
        }
        if self.look.is_paper:
            inches = {"width": self.width / POINTS_AN_INCH, "height": height / POINTS_AN_INCH}
            medium = {**{side: f"{length:.4g}in" for side, length in inches.items()}, "font-family": _FONTS}
            background = Markup('<rect width="100%" height="100%" fill="#ffffff"/>\n')
        else:
            medium = {"class": "c-chart", "width": _number(self.width), "height": _number(height)}
            background = Markup("")
        all_attributes: dict[str, str | float] = {
            "xmlns": "http://www.w3.org/2000/svg",
            **medium,
            **box,
            "role": "img",
            "aria-labelledby": f"c{name}t",
            "aria-describedby": f"c{name}d",
        }
        chart = Markup('<svg {}>\n<title id="c{}t">{}</title>\n<desc id="c{}d">{}</desc>\n{}{}\n</svg>').format(
            _attributes_text(all_attributes), name, self._title, name, full_description, background, body
        )
        if not self.look.is_paper and self.width > PAGE.width + 1e-6:
            scrollable = Markup('<div class="c-wide" role="group" tabindex="0" aria-label="{}">{}</div>')
            return scrollable.format(self._title, chart)
        return chart


def empty_chart(frame: ChartFrame, reason: str = "There is no data to draw yet.") -> Markup:
    """Return a chart that contains only a reason instead of data."""
    drawing = Drawing(frame)
    drawing.note(reason)
    return drawing.svg(reason)


def _attributes_text(attributes_: Mapping[str, str | float]) -> Markup:
    return Markup(" ").join(Markup('{}="{}"').format(name, _number(value)) for name, value in attributes_.items())


def _points(points: Sequence[Point]) -> str:
    return " ".join(f"{_number(x)},{_number(y)}" for x, y in points)


def _number(value: str | float) -> str:
    """Format a number with at most two decimals, and never as -0; a text is returned unchanged."""
    if isinstance(value, str):
        return value
    text = f"{value:.2f}".rstrip("0").rstrip(".")
    return "0" if text in ("-0", "") else text
