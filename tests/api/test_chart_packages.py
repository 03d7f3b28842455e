"""Figures in Altair, Matplotlib and pandas, and the size and text of PDF and PNG files."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from runner import RunResult, load_spec, run
from tests.support.paths import ROOT

FIGURES = ("forest", "outcomes", "rounds", "reliability", "accuracy_by_protocol", "frontier")


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> RunResult:
    overrides = ["dataset.limit=6", "verdict.confidence=stated"]
    return run(load_spec(ROOT / "specs" / "quickstart.yaml", overrides), tmp_path_factory.mktemp("drawn") / "results")


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_valid_in_altair(result: RunResult, name: str) -> None:
    pytest.importorskip("altair")
    chart = result.plot(name).altair().to_dict()  # checked against the schema of Vega-Lite
    assert str(next(iter(chart.get("datasets", {0: chart.get("data")}).values())))


@pytest.mark.full
@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FIGURES)
def test_matplotlib_draws_every_figure(
    result: RunResult, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))  # the folder of its font list
    pytest.importorskip("matplotlib")
    image = io.BytesIO()
    result.plot(name).matplotlib().savefig(image, format="png")
    assert image.getvalue().startswith(b"\x89PNG")


def test_figure_rows_are_available_as_a_pandas_frame(result: RunResult) -> None:
    pytest.importorskip("pandas")
    plot = result.plot("forest")
    frame = plot.frame()
    assert list(frame["value"]) == [row["value"] for row in plot.rows]


@pytest.mark.parametrize(("width", "inches"), [("column", 3.25), ("page", 6.75)])
def test_pdf_has_the_column_width_and_embedded_fonts(
    result: RunResult, width: str, inches: float, tmp_path: Path
) -> None:
    pytest.importorskip("vl_convert")
    pypdf = pytest.importorskip("pypdf")
    result.plot("outcomes").save(tmp_path / "f.pdf", width, "How they end")
    [page] = pypdf.PdfReader(tmp_path / "f.pdf").pages
    assert float(page.mediabox.width) == pytest.approx(inches * 72, abs=0.1)
    assert page.extract_text().splitlines()[:2] == ["How they end", "decided 6"]
    fonts = [font.get_object() for font in page["/Resources"]["/Font"].values()]
    assert all("/FontFile" in str(font["/DescendantFonts"][0].get_object()["/FontDescriptor"]) for font in fonts)


def test_png_has_300_dpi_and_colored_bars(result: RunResult, tmp_path: Path) -> None:
    pytest.importorskip("vl_convert")
    pil = pytest.importorskip("PIL.Image")
    result.plot("outcomes").save(tmp_path / "f.png")
    with pil.open(tmp_path / "f.png") as image:
        assert image.width == pytest.approx(3.25 * 300, abs=1)
        assert [round(dots) for dots in image.info["dpi"]] == [300, 300]
        colors = {color for _, color in image.convert("RGB").getcolors(1 << 20)}
    assert (255, 255, 255) in colors
    assert any(blue > 150 and red < 80 for red, _, blue in colors), "the bars are blue"
