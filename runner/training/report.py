"""A training run's stages into what people and tables are told: its curve and its sums."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from runner.results.folder import RunFolder, run_folders
from runner.runs.reconstruct import saved_plan
from runner.storage.atomic import read_json
from runner.training.games import check_part
from runner.training.next_steps import next_steps
from runner.training.stage_log import read_stages
from runner.training.stages import Stages, Switched, Tested


def parts_of(results: Path, run_id: str) -> list[RunFolder]:
    """The runs that are a part of a training run, in the order of their iterations, games before tests."""
    found = [
        (manifest["iteration"], folder.run_id, folder)
        for folder in run_folders(results)
        if (manifest := folder.manifest()).get("parent_run_id") == run_id
    ]
    return [folder for _, _, folder in sorted(found, key=lambda row: row[:2])]


def progress(folder: RunFolder) -> dict[str, Any]:
    """What a run that is not finished has come to, in the form of `summary`, with what comes next under `next`.

    Raises:
        RunError, SpecError: a file of the run is gone or damaged.
    """
    stages, training = read_stages(folder.path), saved_plan(folder).spec.experiment.training
    assert training is not None
    parts = parts_of(folder.path.absolute().parents[1], folder.run_id)
    return {**summary(folder, stages, parts), "next": next_steps(folder, stages, training)}


def summary(folder: RunFolder, stages: Stages, parts: Iterable[RunFolder]) -> dict[str, Any]:
    """What a training run has come to, in the form of its `metrics.json`; `parts` are the runs that belong to it.

    Raises:
        RunError: a finished test is gone.
    """
    return {
        "run_id": folder.run_id,
        "outcomes": {},
        "metrics": [],
        "games": _sums(parts),
        "iterations": [
            {"iteration": record.iteration, "outcomes": record.outcomes, "models": record.models}
            for record in stages.all(Switched)
        ],
        "tests": [_test(folder, record) for record in stages.all(Tested)],
    }


def _test(folder: RunFolder, record: Tested) -> dict[str, Any]:
    """How the models measured before an iteration."""
    part = check_part(folder, record)
    accuracy = next(m for m in read_json(part.metrics)["metrics"] if m["metric"] == "accuracy")
    shown = {name: accuracy[name] for name in ("value", "ci_low", "ci_high", "n", "clusters")}
    return {"iteration": record.iteration, "run_id": part.run_id, "accuracy": shown}


def _sums(parts: Iterable[RunFolder]) -> dict[str, Any]:
    """What all games and tests took; no cost where that of one is not known."""
    manifests = [part.manifest() for part in parts]
    counts = {name: sum(row.get(name) or 0 for row in manifests) for name in ("rollouts", "completions")}
    costs = [row["cost_usd"] for row in manifests if "cost_usd" in row]  # what is played now has none yet
    known = [cost for cost in costs if cost is not None]
    return {**counts, "cost_usd": round(sum(known), 9) if len(known) == len(costs) else None}
