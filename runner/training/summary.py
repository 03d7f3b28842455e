"""A training run's stages into what people and tables are told: its curve and its sums."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.base.text import in_one_line
from runner.results.folder import RunFolder
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status
from runner.results.metric_table import RANKING_METRIC
from runner.runs.finished.reconstruction import saved_plan
from runner.training.games import check_part
from runner.training.next_steps import next_steps
from runner.training.stage_log import read_stages
from runner.training.stages import Became, Stages, Switched, TestPlayed


def come_to(folder: RunFolder, manifest: Manifest) -> dict[str, Any]:
    """What a training run has come to, an unfinished one so far.

    Raises:
        RunError, SpecError: a file of the run is gone or damaged.
    """
    if manifest.status == Status.DONE and folder.metrics.is_file():
        found: dict[str, Any] = folder.read_metrics()
        return found
    return progress(folder)


def progress(folder: RunFolder) -> dict[str, Any]:
    """What a run that is not finished has come to, in the form of `summary`, with what comes next under `next`.

    Raises:
        RunError, SpecError: a file of the run is gone or damaged.
    """
    stages, training = read_stages(folder.path, folder.identity()), saved_plan(folder).spec.experiment.training
    assert training is not None
    parts = Results.of(folder).parts_of(folder.run_id)
    return {**summary(folder, stages, parts), "next": next_steps(folder, stages, training)}


def test_name(test: Mapping[str, Any], iterations: int, *, over: bool) -> str:
    """Which models a test measured: those before an iteration, or of a run that is `over`, those it came to."""
    last = test["iteration"] == iterations and over
    return "in the end" if last else f"before iteration {test['iteration']}"


def became_words(outcome: Mapping[str, Any], model: str) -> str:
    """What became of a group in an iteration, and the model that it has since."""
    if outcome["outcome"] == Became.TOO_FEW:
        return f"not trained: fewer than {outcome['min_examples']} examples; stays {in_one_line(model)}"
    return f"{outcome['outcome']}: {in_one_line(model)}"


def left_out_words(outcome: Mapping[str, Any]) -> str:
    """Why examples were left out, and whatever else there is to say of the dataset."""
    counts = [f"{count} {why}" for why, count in outcome.get("left_out", {}).items()]
    return "; ".join([*counts, *outcome.get("notes", ())])


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
        "tests": [_test(folder, record) for record in stages.all(TestPlayed)],
    }


def _test(folder: RunFolder, record: TestPlayed) -> dict[str, Any]:
    """How the models measured before an iteration."""
    part = check_part(folder, record)
    accuracy = next(m for m in part.read_metrics()["metrics"] if m["metric"] == RANKING_METRIC)
    shown = {name: accuracy[name] for name in ("value", "ci_low", "ci_high", "n", "clusters")}
    return {"iteration": record.iteration, "run_id": part.run_id, "accuracy": shown}


def _sums(parts: Iterable[RunFolder]) -> dict[str, Any]:
    """What all games and tests took; no cost where that of one is not known."""
    manifests = [part.manifest() for part in parts]
    costs = [one.cost_usd for one in manifests if one.rollouts is not None]  # what is played now has none yet
    known = [cost for cost in costs if cost is not None]
    return {
        "rollouts": sum(one.rollouts or 0 for one in manifests),
        "completions": sum(one.completions or 0 for one in manifests),
        "cost_usd": round(sum(known), 9) if len(known) == len(costs) else None,
    }
