"""Charts: well-formed, the same bytes each time, nothing of a stranger alive in them, numbers where the scale says."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import cast
from xml.etree import ElementTree as ET

import pytest
from markupsafe import Markup

from runner.game.protocols.loader import load_protocol
from runner.pages.charts.columns import columns
from runner.pages.charts.curve import Series, curve
from runner.pages.charts.estimates import ChartEstimate
from runner.pages.charts.frontier import PricedSystem, frontier
from runner.pages.charts.heatmap import heatmap
from runner.pages.charts.labels import cut_to_width, mark_invisible, width_of, wrap_label
from runner.pages.charts.protocol import protocol_picture
from runner.pages.charts.reliability import ReliabilityBins, reliability
from runner.pages.charts.rows import bars, forest
from runner.pages.charts.scales import Scale, decades, extent
from runner.pages.charts.styles import COLORS, COLUMN, FULL, PAGE, ChartFrame, Look
from runner.pages.html import style
from runner.results.metrics_file import ReliabilityRow

SVG = "{http://www.w3.org/2000/svg}"
LOOKS = [PAGE, COLUMN, FULL, replace(COLUMN, shows_title=True)]
Chart = Callable[[str, float | None, Look], Markup]


def bins(n: float | None) -> list[ReliabilityRow]:
    number = cast("int", n)
    return [{"low": 0.4, "high": 0.5, "n": number, "confidence": 0.45, "right": number, "ci_low": None, "ci_high": 0.9}]


CHARTS: dict[str, Chart] = {
    "forest": lambda name, value, look: forest([ChartEstimate(name, value, value, 0.9)], ChartFrame(name, look)),
    "forest with a reference": lambda name, value, look: forest(
        [ChartEstimate(name, value), ChartEstimate("b", 0.2, 0.1, None)],
        ChartFrame(name, look), reference=value
    ),
    "bars": lambda name, value, look: bars(
        [ChartEstimate(name, value, 0.1, value)], ChartFrame(name, look), baseline=ChartEstimate(name, value, 0.2, 0.4)
    ),
    "frontier": lambda name, value, look: frontier(
        [PricedSystem(name, ChartEstimate(name, value, 0.1, value), value),
         PricedSystem("b", ChartEstimate("b", 0.5), 0.2)],
        ChartFrame(name, look), x=name, y=name,
    ),
    "columns": lambda name, value, look: columns([(1, value), (2, 3.0)], ChartFrame(name, look), x=name, y=name),
    "curve": lambda name, value, look: curve(
        [
            Series(name, [(0, ChartEstimate("", 0.5, 0.4, 0.6)), (1, ChartEstimate("", value, 0.1, value))]),
            Series("b", []),
        ],
        ChartFrame(name, look), x=name, y=name,
    ),
    "reliability": lambda name, value, look: reliability([ReliabilityBins(name, bins(value))], ChartFrame(name, look)),
    "heat": lambda name, value, look: heatmap(
        [name, "b"], [name], [[value], [0.5]], ChartFrame(name, look), row_name=name, column_name=name
    ),
}  # fmt: skip


def parsed(svg: str) -> ET.Element:
    """A chart as XML; the box that a wide one scrolls in is not a part of it."""
    return ET.fromstring(svg[svg.index("<svg") : svg.rindex("</svg>") + 6])


def texts(svg: str) -> list[str]:
    return ["".join(one.itertext()) for one in parsed(svg).iter(f"{SVG}text")]


NUMBERS = (0.25, None, math.nan, math.inf, -math.inf, 1e308, -1e-300, 0.0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CHARTS)
def test_any_number_makes_a_chart_that_is_xml_with_a_title_and_a_description(name: str) -> None:
    for look, value in product(LOOKS, NUMBERS):
        chart = CHARTS[name]("nip", value, look)
        root = parsed(chart)
        named = {one.get("id"): one for one in root.iter() if one.get("id")}
        assert (root.tag, root.get("role")) == (f"{SVG}svg", "img")
        assert named[root.get("aria-labelledby")].text == "nip"
        assert named[root.get("aria-describedby")].text
        assert "nan" not in chart
        assert "inf" not in chart


HOSTILE = "</title></svg><script>alert(1)</script>\" onload='x' &amp; \x00\x1b[31m\u202e\ud800\ufffe\n]]>"


@pytest.mark.parametrize("name", CHARTS)
def test_a_strangers_name_is_text_and_nothing_else(name: str) -> None:
    for look in LOOKS:
        root = parsed(CHARTS[name](HOSTILE, 0.5, look))
        kinds = {one.tag.removeprefix(SVG) for one in root.iter()}
        assert kinds <= {"svg", "title", "desc", "rect", "line", "circle", "polygon", "polyline", "text"}
        allowed = re.compile(r"class|viewBox|[a-z-]+\d?")
        assert all(allowed.fullmatch(key) and not key.startswith("on") for one in root.iter() for key in one.attrib)
        assert not [one for one in root.iter() if "style" in one.attrib or "href" in one.attrib]
        assert "⟨U+0000⟩⟨U+001B⟩[31m⟨U+202E⟩⟨U+D800⟩⟨U+FFFE⟩⟨U+000A⟩" in "".join(root.itertext())


@pytest.mark.parametrize("name", CHARTS)
def test_a_chart_has_the_same_bytes_each_time_and_ids_of_its_own(name: str) -> None:
    one, again, other = (CHARTS[name](of, 0.5, PAGE) for of in ("a", "a", "b"))
    assert one == again
    ids = [{found.get("id") for found in parsed(chart).iter()} - {None} for chart in (one, other)]
    assert not ids[0] & ids[1]


def test_a_key_tells_two_charts_of_the_same_numbers_apart() -> None:
    charts = [forest([ChartEstimate("a", 0.5)], ChartFrame("t", key=key)) for key in ("one", "two")]
    assert charts[0] != charts[1]


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [0, 1, 200])
def test_no_point_one_and_two_hundred_make_sense(count: int) -> None:
    estimates = [ChartEstimate(f"system {at}", at / 200, at / 200 - 0.01, at / 200 + 0.01) for at in range(count)]
    for chart in (
        forest(estimates, ChartFrame("t")),
        bars(estimates, ChartFrame("t")),
        curve([Series("s", list(enumerate(estimates)))], ChartFrame("t")),
        columns([(at, 1.0) for at in range(count)], ChartFrame("t")),
        heatmap([one.name for one in estimates], ["c"], [[one.value] for one in estimates], ChartFrame("t")),
    ):
        root = parsed(chart)
        wide = float((root.get("viewBox") or "").split()[2])
        inside = [float(one.get("x") or 0) for one in root.iter(f"{SVG}text")]
        assert all(0 <= x <= wide for x in inside)
        assert (texts(chart) == ["There is no data to draw yet."]) == (count == 0)


def test_a_value_stands_where_the_scale_says() -> None:
    chart = parsed(forest([ChartEstimate("a", 0.25, 0.0, 0.5)], ChartFrame("t"), domain=(0.0, 1.0)))
    [mark] = chart.iter(f"{SVG}circle")
    left, right = PAGE.size * 0.6, PAGE.width - PAGE.size * 0.6
    assert float(mark.get("cx") or 0) == pytest.approx(left + 0.25 * (right - left), abs=0.01)
    whisker = next(one for one in chart.iter(f"{SVG}line") if one.get("class") == "c-whisker c-s0")
    ends = [float(whisker.get(end) or 0) for end in ("x1", "x2")]
    assert ends == pytest.approx([left, left + 0.5 * (right - left)], abs=0.01)


def test_bars_of_a_share_are_as_long_as_it_is() -> None:
    chart = parsed(bars([ChartEstimate("a", 0.5), ChartEstimate("b", 0.25)], ChartFrame("t"), domain=(0.0, 1.0)))
    wide = [float(one.get("width") or 0) for one in chart.iter(f"{SVG}rect") if one.get("class") == "c-bar c-s0"]
    assert wide[0] == pytest.approx(2 * wide[1], abs=0.02)


def test_a_missing_value_breaks_the_line_and_not_the_chart() -> None:
    points = [(at, ChartEstimate("", None if at == 2 else 0.5 + at / 100)) for at in range(5)]
    chart = parsed(curve([Series("s", points)], ChartFrame("t")))
    assert len(list(chart.iter(f"{SVG}polyline"))) == 2
    assert len([one for one in chart.iter(f"{SVG}circle") if one.get("class") == "c-mark c-s0"]) == 4


def test_an_open_end_has_an_arrow_and_the_sign_of_infinity() -> None:
    chart = forest([ChartEstimate("d'", 1.5, 0.5, None)], ChartFrame("t"))
    assert "1.500 [0.500, not estimable]" in texts(chart)
    assert len(list(parsed(chart).iter(f"{SVG}polyline"))) == 1


def test_columns_of_many_numbers_hold_all_games() -> None:
    chart = parsed(columns([(at, 2.0) for at in range(1000)], ChartFrame("t")))
    counts = [
        float((one.findtext(f"{SVG}title") or "").split(": ")[1].replace(",", "")) for one in chart.iter(f"{SVG}rect")
    ]
    assert sum(counts) == 2000
    assert len(counts) <= 40


def test_a_chart_on_paper_needs_nothing_else_and_has_the_width_of_a_column() -> None:
    chart = CHARTS["curve"]("nip", 0.5, COLUMN)
    root = parsed(chart)
    assert root.get("width") == "3.25in"
    assert "class=" not in chart
    assert "var(" not in chart
    assert "currentColor" not in chart
    assert COLORS[0] in chart


def test_series_differ_without_their_colours() -> None:
    points = [(at, ChartEstimate("", at / 10)) for at in range(3)]
    chart = parsed(curve([Series(str(n), points) for n in range(6)], ChartFrame("t", COLUMN)))
    lines = {one.get("stroke-dasharray") for one in chart.iter(f"{SVG}polyline")}
    assert len(lines) == 6


def test_every_class_of_a_chart_has_a_rule() -> None:
    charts = [make("nip", 0.5, PAGE) for make in CHARTS.values()]
    charts += [protocol_picture(load_protocol(name)) for name in ("mnip", "solo_verifier")]
    used = {name for chart in charts for classes in re.findall(r'class="([^"]*)"', chart) for name in classes.split()}
    assert {name for name in used if f".{name}" not in style()} == set()


# Protocols


def test_a_picture_shows_who_speaks_where_and_who_hears_it() -> None:
    chart = parsed(protocol_picture(load_protocol("mnip")))
    titles = [one.text for one in chart.iter(f"{SVG}title")]
    assert "verifier speaks in prover0_channel; heard by prover0; verifier may decide" in titles
    assert "prover1 speaks in prover1_channel; heard by verifier" in titles
    assert any(
        words.startswith("prover0_channel, private")
        for words in map(str, texts(protocol_picture(load_protocol("mnip"))))
    )


def test_rounds_that_repeat_are_named_once() -> None:
    shown = texts(protocol_picture(load_protocol("nip")))
    assert "rounds 2 to 7: same as 0 to 1" in shown
    assert "7" not in shown


@pytest.mark.parametrize("name", ["adp", "debate", "merlin_arthur", "mnip", "nip", "solo_verifier"])
def test_every_protocol_has_a_picture_within_its_frame(name: str) -> None:
    root = parsed(protocol_picture(load_protocol(name)))
    wide, high = map(float, (root.get("viewBox") or "").split()[2:])
    for text in root.iter(f"{SVG}text"):
        x, y = float(text.get("x") or 0), float(text.get("y") or 0)
        assert 0 <= x <= wide
        assert 0 < y <= high


# Scales and words


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-0.04, 0.08, ["−0.04", "−0.02", "0.00", "0.02", "0.04", "0.06", "0.08"]),
        (0.0, 120_000.0, ["0", "20k", "40k", "60k", "80k", "100k", "120k"]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[str]) -> None:
    assert [one.label for one in Scale(low, high, 0, 100).ticks(6)] == ticks


def test_amounts_of_several_powers_of_ten_have_a_logarithmic_scale() -> None:
    ends = decades([0.01, 0.1, 20.0])
    assert ends is not None
    scale = Scale(*ends, 0, 100, logarithmic=True)
    assert [one.label for one in scale.ticks()] == ["0.01", "0.1", "1", "10"]
    assert scale.at(1.0) - scale.at(0.1) == pytest.approx(scale.at(10.0) - scale.at(1.0))
    assert decades([0.0, 1.0]) is None
    assert decades([1.0, 2.0]) is None


def test_the_extent_of_values_holds_them_on_round_numbers() -> None:
    assert extent([0.31, 0.52, None, math.nan]) == pytest.approx((0.3, 0.55))
    assert extent([]) == (0.0, 1.0)
    assert extent([3.0], low=0.0)[0] == 0.0


def test_what_is_too_long_loses_its_end_and_fits() -> None:
    for text in ("soundness_error_with_a_long_name", "名" * 30, "m" * 100):
        short = cut_to_width(text, 100.0, 14.0)
        assert short.endswith("…")
        assert width_of(short, 14.0) <= 100.0
    assert wrap_label("gpt-4o-2024-11-20", 60.0, 14.0) == ["gpt-4o-", "2024-", "11-20"]


def test_what_cannot_be_seen_is_shown_by_its_number() -> None:
    assert mark_invisible("a\u202eb\x1b\u200d\ufeff") == "a⟨U+202E⟩b⟨U+001B⟩⟨U+200D⟩⟨U+FEFF⟩"
    assert mark_invisible("naïve 名 ✓") == "naïve 名 ✓"
