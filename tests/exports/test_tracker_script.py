"""The script in `docs/how-to/log-to-a-tracker.md`, with a tracker that records its calls."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.compatibility.old import FIXTURES, RUNS
from tests.support.documentation import blocks, pages
from tests.support.runs import run_spec
from tests.support.specs import spec_file

(SCRIPT,) = (block.text for block in blocks(pages()["docs/how-to/log-to-a-tracker.md"], "python"))


class RecordingTracker:
    """The functions that Weights & Biases and Trackio share."""

    def __init__(self) -> None:
        self.runs: list[dict[str, Any]] = []
        self.steps: list[tuple[int, dict[str, float]]] = []
        self.is_open = False

    def init(self, *, project: str, name: str, config: dict[str, Any]) -> None:
        assert not self.is_open
        self.is_open = True
        self.runs.append({"project": project, "name": name, "config": config})

    def log(self, metrics: dict[str, float], step: int) -> None:
        assert self.is_open
        self.steps.append((step, metrics))

    def finish(self) -> None:
        self.is_open = False


def log_with_script(run: Path) -> RecordingTracker:
    script, tracker = ModuleType("log_runs"), RecordingTracker()
    exec(compile(SCRIPT, "log_runs.py", "exec"), script.__dict__)
    script.log_run(tracker, "debates", str(run))
    assert not tracker.is_open
    return tracker


def test_the_script_is_at_most_80_lines() -> None:
    assert len(SCRIPT.splitlines()) <= 80


def test_run_is_logged_with_its_spec_curve_and_metrics(tmp_path: Path) -> None:
    result = run_spec(spec_file(tmp_path, size=6), tmp_path / "results")
    tracker = log_with_script(result.folder.path)
    (run,) = tracker.runs
    assert (run["project"], run["name"]) == ("debates", result.run_id)
    assert run["config"]["models"]["m"]["provider"] == "dummy"
    assert [step for step, _ in tracker.steps] == [1, 2, 3, 4, 5, 6]
    last = tracker.steps[-1][1]
    row = next(row for row in result.metrics["metrics"] if (row["agent"], row["metric"]) == (None, "accuracy"))
    assert last["games.right"] == pytest.approx(row["value"])
    assert (last["accuracy"], last["accuracy.low"]) == (row["value"], row["ci_low"])
    assert any(name.startswith("verifier.") for name in last)


def test_training_run_is_logged_by_iteration(tmp_path: Path) -> None:
    shutil.copytree(FIXTURES / "results" / "runs", tmp_path / "runs")
    tracker = log_with_script(tmp_path / "runs" / RUNS["learning"])
    assert [step for step, _ in tracker.steps] == sorted({step for step, _ in tracker.steps})
    assert {"games.accuracy", "test.accuracy"} <= {name for _, metrics in tracker.steps for name in metrics}
