"""The page of a training run: its curve, its models, its parts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from runner.results.folder import RunFolder
from tests.support.report_summaries import SummarySection, build_site, read_summaries

OLD = Path(__file__).parents[1] / "fixtures" / "v0_1_0" / "results"
RUN = "malt-c2d863dc7d"


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(shutil.copytree(OLD, tmp_path_factory.mktemp("old") / "results"))


@pytest.fixture(scope="module")
def pages(results: Path) -> dict[str, SummarySection]:
    return read_summaries(results / "runs" / RUN)


@pytest.mark.full
def test_a_training_run_brings_the_pages_of_its_parts(pages: dict[str, SummarySection], results: Path) -> None:
    parts = sorted(path.name for path in (results / "runs").glob(f"{RUN}-*"))
    assert list(pages) == [
        f"run/{RUN}",
        *(f"run/{row['Run']}" for row in pages[f"run/{RUN}"].table("Parts of the training run")),
    ]
    assert sorted(row["Run"] for row in pages[f"run/{RUN}"].table("Parts of the training run")) == parts
    assert {f"#/run/{part}" for part in parts} <= pages[f"run/{RUN}"].links.keys()
    for part in parts:
        assert f"#/run/{RUN}" in pages[f"run/{part}"].links


def test_the_learning_curve_has_the_accuracy_of_every_test(pages: dict[str, SummarySection], results: Path) -> None:
    tests = json.loads((results / "runs" / RUN / "metrics.json").read_text("utf-8"))["tests"]
    rows = pages[f"run/{RUN}"].table("Accuracy on the test")
    assert [(row["Test"], row["Accuracy"]) for row in rows] == [
        (test["run_id"], f"{test['accuracy']['value']:.3f}") for test in tests
    ]
    assert rows[-1]["Models"] == "in the end"
    assert "svg" in pages[f"run/{RUN}"].tags


def test_what_became_of_each_model_and_what_it_was_trained_on_is_told(
    pages: dict[str, SummarySection], results: Path
) -> None:
    stages = [
        json.loads(line[9:]) for line in (results / "runs" / RUN / "stages.jsonl").read_text("utf-8").splitlines()
    ]
    (switched,) = [stage for stage in stages if stage.get("stage") == "switched"]
    page = pages[f"run/{RUN}"]
    trained = {row["Group"]: row["Result"] for row in page.table("Result of each iteration")}
    for group, state in switched["models"].items():
        assert trained[group].endswith(state["model"])
        assert all(step["dataset_sha256"] in page.text for step in state["lineage"])


@pytest.mark.full
def test_a_training_run_that_stopped_says_what_comes_next(results: Path, tmp_path: Path) -> None:
    """Its stage log is cut off after the games of its first iteration."""
    shutil.copytree(results, tmp_path / "results")
    run = tmp_path / "results" / "runs" / RUN
    lines = (run / "stages.jsonl").read_bytes().splitlines(keepends=True)
    until = next(at for at, line in enumerate(lines) if json.loads(line[9:]).get("stage") == "datasets")
    (run / "stages.jsonl").write_bytes(b"".join(lines[:until]))
    (run / "metrics.json").unlink()
    manifest = json.loads((run / "manifest.json").read_text("utf-8"))
    (run / "manifest.json").write_text(json.dumps({**manifest, "status": "interrupted"}))
    page = read_summaries(run)[f"run/{RUN}"]
    assert "Next step: iteration 0" in page.text
    assert not [caption for caption in page.tables if caption.startswith("Result of each iteration")]


def test_names_of_models_and_templates_are_text(results: Path, tmp_path: Path) -> None:
    hostile = "<img src=x onerror=alert(1)>\u202e"
    shutil.copytree(results, tmp_path / "results")
    run = tmp_path / "results" / "runs" / RUN
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
