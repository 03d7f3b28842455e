"""The looks of a chart. In a page, CSS classes set the colors; on paper, the chart contains its colors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

POINTS_AN_INCH = 72
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a87900", "#56b4e9")
"""The palette of Okabe and Ito, whose colors are distinct with any color vision. The yellow is darker, because lines
are thin."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.2, 1.8), (7, 2, 1.5, 2), (10, 3), (3, 1.5))
"""Dash patterns that distinguish the series without colors; lengths are in line widths."""
SERIES = len(COLORS)


@dataclass(frozen=True)
class Look:
    """The size and medium of a chart. `width`, and `size` of the text, are in units of the SVG view box."""

    name: str
    width: float
    size: float
    is_paper: bool = False
    shows_title: bool = False
    """Whether the title is drawn; otherwise only screen readers have it."""

    @property
    def unit(self) -> float:
        """The width of a thin line."""
        return self.size / 12

    @property
    def is_narrow(self) -> bool:
        """Whether labels are above the values instead of next to them."""
        return self.width < 40 * self.size


PAGE = Look("page", 400, 14)
"""The look in a web page: 400 pixels wide. On a phone with 360 pixels, the text is 11.5 pixels high."""
COLUMN = Look("column", 3.25 * POINTS_AN_INCH, 7.5, is_paper=True)
"""One column of a paper, in points."""
FULL = Look("page", 6.75 * POINTS_AN_INCH, 8, is_paper=True)
"""The full width of a paper's page, in points."""
PAPERS: Mapping[str, Look] = {"column": COLUMN, "page": FULL}


@dataclass(frozen=True)
class ChartFrame:
    """The title, the appearance and the key of a chart."""

    title: str
    look: Look = PAGE
    key: str = ""
    """Distinguishes charts with the same content on one page."""


INK, SOFT, FAINT = "#000000", "#444444", "#c8c8c8"
SERIES_COLOR = "own"
"""Placeholder for the color of the series."""

ROLES: Mapping[str, Mapping[str, str | float]] = {
    "text": {"fill": INK},
    "soft": {"fill": SOFT},
    "own-text": {"fill": SERIES_COLOR},
    "axis": {"stroke": SOFT, "stroke-width": 1, "fill": "none"},
    "grid": {"stroke": FAINT, "stroke-width": 0.6, "fill": "none"},
    "reference": {"stroke": INK, "stroke-width": 1, "fill": "none"},
    "reference-band": {"fill": INK, "fill-opacity": 0.08},
    "line": {"stroke": SERIES_COLOR, "stroke-width": 1.8, "fill": "none", "stroke-linejoin": "round"},
    "whisker": {"stroke": SERIES_COLOR, "stroke-width": 1.4, "fill": "none"},
    "band": {"fill": SERIES_COLOR, "fill-opacity": 0.18},
    "mark": {"fill": SERIES_COLOR, "stroke": "none"},
    "hollow": {"fill": "#ffffff", "stroke": SERIES_COLOR, "stroke-width": 1.4},
    "bar": {"fill": SERIES_COLOR, "fill-opacity": 0.85},
    "track": {"fill": INK, "fill-opacity": 0.06},
    "cell": {"fill": COLORS[0]},
    "empty": {"fill": "none", "stroke": FAINT, "stroke-width": 0.8},
    "box": {"fill": "#ffffff", "stroke": SOFT, "stroke-width": 1},
    "over": {"stroke": INK, "stroke-width": 1.4, "fill": "none"},
}
"""The roles of chart elements, with their attributes on paper. Line widths are in units of the look. In a page, the
classes `c-ROLE` and `c-s0` to `c-s5` set the colors instead."""


def attributes(look: Look, role: str, series: int | None) -> dict[str, str | float]:
    """Return the attributes of an element: its class in a page, its colors on paper, its line widths in both."""
    element_attributes: dict[str, str | float] = {}
    if not look.is_paper:
        element_attributes["class"] = f"c-{role}" if series is None else f"c-{role} c-s{series % SERIES}"
    series_color = COLORS[(series or 0) % SERIES]
    for name, value in ROLES[role].items():
        if name == "stroke-width":
            element_attributes[name] = float(value) * look.unit
        elif look.is_paper or value == "none" or name not in ("fill", "stroke"):
            element_attributes[name] = series_color if value == SERIES_COLOR else value
    if role == "line" and series is not None and DASHES[series % SERIES]:
        element_attributes["stroke-dasharray"] = dashes(look, DASHES[series % SERIES])
    if role == "reference":
        element_attributes["stroke-dasharray"] = dashes(look, (4, 3))
    return element_attributes


def dashes(look: Look, pattern: tuple[float, ...]) -> str:
    return " ".join(f"{length * look.unit:.4g}" for length in pattern)
