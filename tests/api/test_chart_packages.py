"""The rows of figures in the packages that draw them: Altair, Matplotlib and pandas take them."""

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


@pytest.mark.parametrize("name", FIGURES)
def test_altair_takes_every_figure_by_its_own_schema(result: RunResult, name: str) -> None:
    pytest.importorskip("altair")
    chart = result.plot(name).altair().to_dict()  # checked against the schema of Vega-Lite
    assert str(next(iter(chart.get("datasets", {0: chart.get("data")}).values())))


@pytest.mark.sample(1)
@pytest.mark.parametrize("name", FIGURES)
def test_matplotlib_draws_every_figure(
    result: RunResult, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MPLCONFIGDIR", str(tmp_path))  # where it keeps its list of fonts
    pytest.importorskip("matplotlib")
    image = io.BytesIO()
    result.plot(name).matplotlib().savefig(image, format="png")
    assert image.getvalue().startswith(b"\x89PNG")


def test_pandas_has_the_rows_as_a_frame(result: RunResult) -> None:
    pytest.importorskip("pandas")
    plot = result.plot("forest")
    frame = plot.frame()
    assert list(frame["value"]) == [row["value"] for row in plot.rows]
