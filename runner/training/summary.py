"""Summarizes a training run for `show`, pages and its `metrics.json`: the learning curve and the totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.base.text import in_one_line
from runner.results.folder import RunFolder, usage_of_parts
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status
from runner.results.metric_definitions import RANKING_METRIC
from runner.runs.finished.reconstruction import saved_plan
from runner.training.games import existing_part
from runner.training.next_steps import next_steps
from runner.training.stage_log import read_stages
from runner.training.stages import GroupResult, ModelSwitch, Stages, TestPlayed


def read_summary(folder: RunFolder, manifest: Manifest) -> dict[str, Any]:
    """Return the summary of a training run, finished or not.

    Raises:
        RunError, SpecError: a file of the run is missing or damaged.
    """
    if manifest.status == Status.DONE and folder.metrics.is_file():
        return folder.read_metrics()
    return progress_summary(folder)


def progress_summary(folder: RunFolder) -> dict[str, Any]:
    """Return the `summary` of an unfinished run so far, with the next steps under `next`.

    Raises:
        RunError, SpecError: a file of the run is missing or damaged.
    """
    stages, training = read_stages(folder.path, folder.identity()), saved_plan(folder).spec.experiment.training
    assert training is not None
    parts = Results.of(folder).parts_of(folder.run_id)
    return {**summarize(folder, stages, parts), "next": next_steps(folder, stages, training)}


def test_name(test: Mapping[str, object], iterations: int, *, over: bool) -> str:
    """Return words for the time of a test, such as "before iteration 2", or "in the end" if the run is `over`."""
    last = test["iteration"] == iterations and over
    return "in the end" if last else f"before iteration {test['iteration']}"


def describe_outcome(outcome: Mapping[str, object], model: str) -> str:
    """Describe the outcome of an iteration for a group; `model` is the group's model after the iteration."""
    if outcome["outcome"] == GroupResult.TOO_FEW:
        return f"not trained: fewer than {outcome['min_examples']} examples; the model stays {in_one_line(model)}"
    return f"{outcome['outcome']}: {in_one_line(model)}"


def describe_left_out(outcome: Mapping[str, Any]) -> str:
    """Describe the reasons why examples were left out, and the other notes on the dataset."""
    counts = [f"{count} {reason}" for reason, count in outcome.get("left_out", {}).items()]
    return "; ".join([*counts, *outcome.get("notes", ())])


def summarize(folder: RunFolder, stages: Stages, parts: Iterable[RunFolder]) -> dict[str, object]:
    """Return the summary of a training run in the format of its `metrics.json`; `parts` are the runs of its parts.

    Raises:
        RunError: a file of a finished test is missing.
    """
    return {
        "run_id": folder.run_id,
        "outcomes": {},
        "metrics": [],
        "games": usage_of_parts(parts),
        "iterations": [
            {"iteration": record.iteration, "outcomes": record.outcomes, "models": record.models}
            for record in stages.find_all(ModelSwitch)
        ],
        "tests": [_test(folder, record) for record in stages.find_all(TestPlayed)],
    }


def _test(folder: RunFolder, record: TestPlayed) -> dict[str, Any]:
    """Return the result of the test before an iteration."""
    part = existing_part(folder, record)
    accuracy = next(metric for metric in part.read_metrics()["metrics"] if metric["metric"] == RANKING_METRIC)
    fields = {name: accuracy[name] for name in ("value", "ci_low", "ci_high", "n", "clusters")}
    return {"iteration": record.iteration, "run_id": part.run_id, "accuracy": fields}
