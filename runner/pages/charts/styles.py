"""The two looks of a chart: in a page, by classes that the page's style colours; on paper, complete in itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

POINTS_AN_INCH = 72
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#a87900", "#56b4e9")
"""Okabe and Ito's, told apart with any colour vision; the yellow darker, so that a line of it can be read."""
DASHES: tuple[tuple[float, ...], ...] = ((), (5, 2), (1.2, 1.8), (7, 2, 1.5, 2), (10, 3), (3, 1.5))
"""Of the series' lines, in parts of the unit: what tells them apart without colours."""
SERIES = len(COLOURS)


@dataclass(frozen=True)
class Look:
    """How a chart is made. `width` and `size`, that of the text, are in the units of its view box."""

    name: str
    width: float
    size: float
    is_paper: bool = False
    headed: bool = False
    """Whether the title is drawn above, and not only told to those who hear the chart."""

    @property
    def unit(self) -> float:
        """A thin line's width."""
        return self.size / 12

    @property
    def is_narrow(self) -> bool:
        """Whether names stand above what they name, and not beside it."""
        return self.width < 40 * self.size


PAGE = Look("page", 400, 14)
"""Shown 400 pixels wide at most; on a phone of 360 its text is 11.5 pixels."""
COLUMN = Look("column", 3.25 * POINTS_AN_INCH, 7.5, is_paper=True)
"""A column of a paper; in points."""
FULL = Look("page", 6.75 * POINTS_AN_INCH, 8, is_paper=True)
"""The page of a paper, across its columns; in points."""
PAPERS: Mapping[str, Look] = {"column": COLUMN, "page": FULL}

INK, SOFT, FAINT = "#000000", "#444444", "#c8c8c8"
OWN = "own"
"""Stands for the colour of the series."""

ROLES: Mapping[str, Mapping[str, str | float]] = {
    "text": {"fill": INK},
    "soft": {"fill": SOFT},
    "own-text": {"fill": OWN},
    "axis": {"stroke": SOFT, "stroke-width": 1, "fill": "none"},
    "grid": {"stroke": FAINT, "stroke-width": 0.6, "fill": "none"},
    "reference": {"stroke": INK, "stroke-width": 1, "fill": "none"},
    "reference-band": {"fill": INK, "fill-opacity": 0.08},
    "line": {"stroke": OWN, "stroke-width": 1.8, "fill": "none", "stroke-linejoin": "round"},
    "whisker": {"stroke": OWN, "stroke-width": 1.4, "fill": "none"},
    "band": {"fill": OWN, "fill-opacity": 0.18},
    "mark": {"fill": OWN, "stroke": "none"},
    "hollow": {"fill": "#ffffff", "stroke": OWN, "stroke-width": 1.4},
    "bar": {"fill": OWN, "fill-opacity": 0.85},
    "track": {"fill": INK, "fill-opacity": 0.06},
    "cell": {"fill": COLOURS[0]},
    "empty": {"fill": "none", "stroke": FAINT, "stroke-width": 0.8},
    "box": {"fill": "#ffffff", "stroke": SOFT, "stroke-width": 1},
    "over": {"stroke": INK, "stroke-width": 1.4, "fill": "none"},
}
"""What a chart is made of. Widths of lines are in units of the look; colours are those on paper: in a page the class
`c-ROLE` has them, and `c-s0` to `c-s5` those of the series."""


def attributes(look: Look, role: str, series: int | None) -> dict[str, str | float]:
    """The attributes of one element: its class in a page, its colours on paper, its lines' widths in both."""
    found: dict[str, str | float] = {}
    if not look.is_paper:
        found["class"] = f"c-{role}" if series is None else f"c-{role} c-s{series % SERIES}"
    own = COLOURS[(series or 0) % SERIES]
    for name, value in ROLES[role].items():
        if name == "stroke-width":
            found[name] = float(value) * look.unit
        elif look.is_paper or value == "none" or name not in ("fill", "stroke"):
            found[name] = own if value == OWN else value
    if role == "line" and series is not None and DASHES[series % SERIES]:
        found["stroke-dasharray"] = dashes(look, DASHES[series % SERIES])
    if role == "reference":
        found["stroke-dasharray"] = dashes(look, (4, 3))
    return found


def dashes(look: Look, pattern: tuple[float, ...]) -> str:
    return " ".join(f"{one * look.unit:.4g}" for one in pattern)
