"""A small results folder with a training run, a benchmark of what it made, and one of what it began with."""

from __future__ import annotations

from pathlib import Path

import pytest

from runner.api import run
from runner.spec.load import load_spec
from tests.support.training import training_spec


@pytest.fixture(scope="session")
def trained_results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`learn`, one iteration on 12 datapoints; `after` measures its models on all 18, `before` the untrained ones."""
    folder = tmp_path_factory.mktemp("trained")
    results = folder / "results"
    path = training_spec(folder, training={"iterations": 1})
    run(load_spec(path), results, run_id="learn")
    measuring = {"kind": "benchmark", "training": None, "name": "measure", "benchmark": "code/v1"}
    measuring["dataset"] = {"path": "data.jsonl", "split": None}
    after = {group: {"provider": None, "from_run": str(results / "runs" / "learn")} for group in ("p", "v")}
    for name, models in (("before", {}), ("after", after)):
        spec = load_spec(training_spec(folder / name, **measuring, models=models))
        run(spec, results, run_id=name)
    return results
