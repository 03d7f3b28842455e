"""The page of a training run: its learning curve, its models and its parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runner.results.folder import RunFolder
from tests.support.report_summaries import SummarySection, build_site, read_summaries

OLD_RESULTS = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "results"
RUN_ID = "malt-c2d863dc7d"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(OLD_RESULTS, tmp_path_factory.mktemp("old") / "results"))


@pytest.fixture(scope="module")
def pages(results: Path) -> dict[str, SummarySection]:
    return read_summaries(results / "runs" / RUN_ID)


@pytest.mark.full
def test_site_of_a_training_run_includes_the_pages_of_its_parts(
    pages: dict[str, SummarySection], results: Path
) -> None:
    parts = sorted(path.name for path in (results / "runs").glob(f"{RUN_ID}-*"))
    assert list(pages) == [
        f"run/{RUN_ID}",
        *(f"run/{row['Run']}" for row in pages[f"run/{RUN_ID}"].table("Parts of the training run")),
    ]
    assert sorted(row["Run"] for row in pages[f"run/{RUN_ID}"].table("Parts of the training run")) == parts
    assert {f"#/run/{part}" for part in parts} <= pages[f"run/{RUN_ID}"].links.keys()
    for part in parts:
        assert f"#/run/{RUN_ID}" in pages[f"run/{part}"].links


def test_learning_curve_has_the_accuracy_of_every_test(pages: dict[str, SummarySection], results: Path) -> None:
    tests = json.loads((results / "runs" / RUN_ID / "metrics.json").read_text("utf-8"))["tests"]
    rows = pages[f"run/{RUN_ID}"].table("Accuracy on the test")
    assert [(row["Test"], row["Accuracy"]) for row in rows] == [
        (test["run_id"], f"{test['accuracy']['value']:.3f}") for test in tests
    ]
    assert rows[-1]["Models"] == "in the end"
    assert "svg" in pages[f"run/{RUN_ID}"].tags


def test_page_shows_each_models_result_and_training_datasets(pages: dict[str, SummarySection], results: Path) -> None:
    stages = [
        json.loads(line[9:]) for line in (results / "runs" / RUN_ID / "stages.jsonl").read_text("utf-8").splitlines()
    ]
    (switched,) = [stage for stage in stages if stage.get("stage") == "switched"]
    page = pages[f"run/{RUN_ID}"]
    trained = {row["Group"]: row["Result"] for row in page.table("Result of each iteration")}
    for group, state in switched["models"].items():
        assert trained[group].endswith(state["model"])
        assert all(step["dataset_sha256"] in page.text for step in state["lineage"])


@pytest.mark.full
def test_stopped_training_run_shows_its_next_step(results: Path, tmp_path: Path) -> None:
    """The run's stage log is cut off after the games of the first iteration."""
    shutil.copytree(results, tmp_path / "results")
    run = tmp_path / "results" / "runs" / RUN_ID
    lines = (run / "stages.jsonl").read_bytes().splitlines(keepends=True)
    cut = next(index for index, line in enumerate(lines) if json.loads(line[9:]).get("stage") == "datasets")
    (run / "stages.jsonl").write_bytes(b"".join(lines[:cut]))
    (run / "metrics.json").unlink()
    manifest = json.loads((run / "manifest.json").read_text("utf-8"))
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    page = read_summaries(run)[f"run/{RUN_ID}"]
    assert "Next step: iteration 0" in page.text
    assert not [caption for caption in page.tables if caption.startswith("Result of each iteration")]


def test_hostile_model_and_benchmark_names_are_escaped(results: Path, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>\u202e"
    shutil.copytree(results, tmp_path / "results")
    run = tmp_path / "results" / "runs" / RUN_ID
    metrics = json.loads((run / "metrics.json").read_text("utf-8"))
    for row in metrics["iterations"]:
        for state in row["models"].values():
            state["model"] = hostile
    (run / "metrics.json").write_text(json.dumps(metrics))
    manifest = json.loads((run / "manifest.json").read_text("utf-8"))
    (run / "manifest.json").write_text(json.dumps({**manifest, "benchmark": hostile, "status": "done"}))
    site, _ = build_site(RunFolder(run))
    html = str(site.sections[0].html)
    page = SummarySection(html)
    assert "img" not in page.tags
    assert page.text.count("<img src=x onerror=alert(1)>") > 2
    assert "\u202e" not in html
