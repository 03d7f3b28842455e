"""Charts are well-formed, deterministic, safe with hostile labels, and drawn to scale."""

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


def make_bins(n: float | None) -> list[ReliabilityRow]:
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
    "reliability": lambda name, value, look: reliability(
        [ReliabilityBins(name, make_bins(value))], ChartFrame(name, look)
    ),
    "heat": lambda name, value, look: heatmap(
        [name, "b"], [name], [[value], [0.5]], ChartFrame(name, look), row_name=name, column_name=name
    ),
}  # fmt: skip


def parse_svg(svg: str) -> ET.Element:
    """Parse a chart's SVG without the scroll box around it."""
    return ET.fromstring(svg[svg.index("<svg") : svg.rindex("</svg>") + 6])


def list_texts(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in parse_svg(svg).iter(f"{SVG}text")]


NUMBERS = (0.25, None, math.nan, math.inf, -math.inf, 1e308, -1e-300, 0.0)


@pytest.mark.sample(3)
@pytest.mark.parametrize("name", CHARTS)
def test_chart_of_any_number_is_valid_xml_with_title_and_description(name: str) -> None:
    for look, value in product(LOOKS, NUMBERS):
        chart = CHARTS[name]("nip", value, look)
        root = parse_svg(chart)
        by_id = {element.get("id"): element for element in root.iter() if element.get("id")}
        assert (root.tag, root.get("role")) == (f"{SVG}svg", "img")
        assert by_id[root.get("aria-labelledby")].text == "nip"
        assert by_id[root.get("aria-describedby")].text
        assert "nan" not in chart
        assert "inf" not in chart


HOSTILE = "</title></svg><script>alert(1)</script>\" onload='x' &amp; \x00\x1b[31m\u202e\ud800\ufffe\n]]>"


@pytest.mark.parametrize("name", CHARTS)
def test_hostile_label_appears_only_as_text(name: str) -> None:
    for look in LOOKS:
        root = parse_svg(CHARTS[name](HOSTILE, 0.5, look))
        tags = {element.tag.removeprefix(SVG) for element in root.iter()}
        assert tags <= {"svg", "title", "desc", "rect", "line", "circle", "polygon", "polyline", "text"}
        allowed = re.compile(r"class|viewBox|[a-z-]+\d?")
        assert all(
            allowed.fullmatch(key) and not key.startswith("on") for element in root.iter() for key in element.attrib
        )
        assert not [element for element in root.iter() if "style" in element.attrib or "href" in element.attrib]
        assert "⟨U+0000⟩⟨U+001B⟩[31m⟨U+202E⟩⟨U+D800⟩⟨U+FFFE⟩⟨U+000A⟩" in "".join(root.itertext())


@pytest.mark.parametrize("name", CHARTS)
def test_chart_is_deterministic_and_its_ids_are_unique(name: str) -> None:
    chart_a, repeated_a, chart_b = (CHARTS[name](label, 0.5, PAGE) for label in ("a", "a", "b"))
    assert chart_a == repeated_a
    ids = [{element.get("id") for element in parse_svg(chart).iter()} - {None} for chart in (chart_a, chart_b)]
    assert not ids[0] & ids[1]


def test_key_distinguishes_charts_of_the_same_numbers() -> None:
    charts = [forest([ChartEstimate("a", 0.5)], ChartFrame("t", key=key)) for key in ("one", "two")]
    assert charts[0] != charts[1]


@pytest.mark.sample(2)
@pytest.mark.parametrize("count", [0, 1, 200])
def test_charts_work_with_no_one_and_200_points(count: int) -> None:
    estimates = [
        ChartEstimate(f"system {index}", index / 200, index / 200 - 0.01, index / 200 + 0.01) for index in range(count)
    ]
    for chart in (
        forest(estimates, ChartFrame("t")),
        bars(estimates, ChartFrame("t")),
        curve([Series("s", list(enumerate(estimates)))], ChartFrame("t")),
        columns([(index, 1.0) for index in range(count)], ChartFrame("t")),
        heatmap([item.name for item in estimates], ["c"], [[item.value] for item in estimates], ChartFrame("t")),
    ):
        root = parse_svg(chart)
        width = float((root.get("viewBox") or "").split()[2])
        positions = [float(item.get("x") or 0) for item in root.iter(f"{SVG}text")]
        assert all(0 <= x <= width for x in positions)
        assert (list_texts(chart) == ["There is no data to draw yet."]) == (count == 0)


def test_value_is_drawn_at_its_position_on_the_scale() -> None:
    chart = parse_svg(forest([ChartEstimate("a", 0.25, 0.0, 0.5)], ChartFrame("t"), domain=(0.0, 1.0)))
    [circle] = chart.iter(f"{SVG}circle")
    left, right = PAGE.size * 0.6, PAGE.width - PAGE.size * 0.6
    assert float(circle.get("cx") or 0) == pytest.approx(left + 0.25 * (right - left), abs=0.01)
    whisker = next(line for line in chart.iter(f"{SVG}line") if line.get("class") == "c-whisker c-s0")
    ends = [float(whisker.get(end) or 0) for end in ("x1", "x2")]
    assert ends == pytest.approx([left, left + 0.5 * (right - left)], abs=0.01)


def test_bar_length_is_proportional_to_its_value() -> None:
    chart = parse_svg(bars([ChartEstimate("a", 0.5), ChartEstimate("b", 0.25)], ChartFrame("t"), domain=(0.0, 1.0)))
    widths = [float(rect.get("width") or 0) for rect in chart.iter(f"{SVG}rect") if rect.get("class") == "c-bar c-s0"]
    assert widths[0] == pytest.approx(2 * widths[1], abs=0.02)


def test_missing_value_interrupts_the_line() -> None:
    points = [(index, ChartEstimate("", None if index == 2 else 0.5 + index / 100)) for index in range(5)]
    chart = parse_svg(curve([Series("s", points)], ChartFrame("t")))
    assert len(list(chart.iter(f"{SVG}polyline"))) == 2
    assert len([circle for circle in chart.iter(f"{SVG}circle") if circle.get("class") == "c-mark c-s0"]) == 4


def test_open_interval_end_is_an_arrow_labeled_not_estimable() -> None:
    chart = forest([ChartEstimate("d'", 1.5, 0.5, None)], ChartFrame("t"))
    assert "1.500 [0.500, not estimable]" in list_texts(chart)
    assert len(list(parse_svg(chart).iter(f"{SVG}polyline"))) == 1


def test_columns_of_many_numbers_count_every_game() -> None:
    chart = parse_svg(columns([(index, 2.0) for index in range(1000)], ChartFrame("t")))
    counts = [
        float((rect.findtext(f"{SVG}title") or "").split(": ")[1].replace(",", "")) for rect in chart.iter(f"{SVG}rect")
    ]
    assert sum(counts) == 2000
    assert len(counts) <= 40


def test_chart_for_paper_has_column_width_and_no_css_references() -> None:
    chart = CHARTS["curve"]("nip", 0.5, COLUMN)
    root = parse_svg(chart)
    assert root.get("width") == "3.25in"
    assert "class=" not in chart
    assert "var(" not in chart
    assert "currentColor" not in chart
    assert COLORS[0] in chart


def test_series_are_distinguishable_without_color() -> None:
    points = [(index, ChartEstimate("", index / 10)) for index in range(3)]
    chart = parse_svg(curve([Series(str(n), points) for n in range(6)], ChartFrame("t", COLUMN)))
    lines = {polyline.get("stroke-dasharray") for polyline in chart.iter(f"{SVG}polyline")}
    assert len(lines) == 6


def test_every_css_class_of_a_chart_has_a_rule() -> None:
    charts = [draw("nip", 0.5, PAGE) for draw in CHARTS.values()]
    charts += [protocol_picture(load_protocol(name)) for name in ("mnip", "solo_verifier")]
    class_names = {
        name for chart in charts for classes in re.findall(r'class="([^"]*)"', chart) for name in classes.split()
    }
    assert {name for name in class_names if f".{name}" not in style()} == set()


# Protocols


def test_protocol_picture_shows_speakers_channels_and_listeners() -> None:
    chart = parse_svg(protocol_picture(load_protocol("mnip")))
    titles = [title.text for title in chart.iter(f"{SVG}title")]
    assert "verifier speaks in prover0_channel; heard by prover0; verifier may decide" in titles
    assert "prover1 speaks in prover1_channel; heard by verifier" in titles
    assert any(
        label.startswith("prover0_channel, private")
        for label in map(str, list_texts(protocol_picture(load_protocol("mnip"))))
    )


def test_repeated_rounds_are_named_once() -> None:
    labels = list_texts(protocol_picture(load_protocol("nip")))
    assert "rounds 2 to 7: same as 0 to 1" in labels
    assert "7" not in labels


@pytest.mark.parametrize("name", ["adp", "debate", "merlin_arthur", "mnip", "nip", "solo_verifier"])
def test_picture_of_every_protocol_stays_within_its_frame(name: str) -> None:
    root = parse_svg(protocol_picture(load_protocol(name)))
    width, height = map(float, (root.get("viewBox") or "").split()[2:])
    for text in root.iter(f"{SVG}text"):
        x, y = float(text.get("x") or 0), float(text.get("y") or 0)
        assert 0 <= x <= width
        assert 0 < y <= height


# Scales and labels


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [
        (0.0, 1.0, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (-0.04, 0.08, ["−0.04", "−0.02", "0.00", "0.02", "0.04", "0.06", "0.08"]),
        (0.0, 120_000.0, ["0", "20k", "40k", "60k", "80k", "100k", "120k"]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, ticks: list[str]) -> None:
    assert [tick.label for tick in Scale(low, high, 0, 100).ticks(6)] == ticks


def test_values_over_several_powers_of_ten_get_a_logarithmic_scale() -> None:
    ends = decades([0.01, 0.1, 20.0])
    assert ends is not None
    scale = Scale(*ends, 0, 100, logarithmic=True)
    assert [tick.label for tick in scale.ticks()] == ["0.01", "0.1", "1", "10"]
    assert scale.at(1.0) - scale.at(0.1) == pytest.approx(scale.at(10.0) - scale.at(1.0))
    assert decades([0.0, 1.0]) is None
    assert decades([1.0, 2.0]) is None


def test_extent_contains_all_values_and_ends_on_round_numbers() -> None:
    assert extent([0.31, 0.52, None, math.nan]) == pytest.approx((0.3, 0.55))
    assert extent([]) == (0.0, 1.0)
    assert extent([3.0], low=0.0)[0] == 0.0


def test_long_label_is_cut_or_wrapped_to_fit() -> None:
    for text in ("soundness_error_with_a_long_name", "名" * 30, "m" * 100):
        shortened = cut_to_width(text, 100.0, 14.0)
        assert shortened.endswith("…")
        assert width_of(shortened, 14.0) <= 100.0
    assert wrap_label("gpt-4o-2024-11-20", 60.0, 14.0) == ["gpt-4o-", "2024-", "11-20"]


def test_invisible_characters_are_shown_by_code_point() -> None:
    assert mark_invisible("a\u202eb\x1b\u200d\ufeff") == "a⟨U+202E⟩b⟨U+001B⟩⟨U+200D⟩⟨U+FEFF⟩"
    assert mark_invisible("naïve 名 ✓") == "naïve 名 ✓"
