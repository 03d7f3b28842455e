"""Summarizes a training run for `show`, pages and its `metrics.json`: the learning curve and the totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from runner.base.text import escape_controls, in_one_line
from runner.results.folder import RunFolder, usage_of_parts
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import Manifest, Status
from runner.results.metric_definitions import RANKING_METRIC
from runner.runs.finished.reconstruction import saved_plan
from runner.spec.training_settings import TrainingSettings
from runner.training.games import existing_part
from runner.training.plan import is_tested_before, part_run_id
from runner.training.stage_log import job_folder, read_stages
from runner.training.stages import (
    DatasetsBuilt,
    GamesPlayed,
    GroupRecord,
    GroupResult,
    JobEnded,
    JobWaited,
    ModelSwitch,
    Stages,
    TestPlayed,
    TrainingEnded,
)


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


def next_steps(folder: RunFolder, stages: Stages, training: TrainingSettings) -> list[str]:
    """Return a line for the next step, or a line for each model group that is being trained."""
    iteration = len(stages.find_all(ModelSwitch))
    test, games = (folder.sibling(part_run_id(folder.run_id, iteration, kind)) for kind in ("benchmark", "training"))
    is_tested = stages.find_last(TestPlayed, iteration) is not None or _is_done(test)
    needs_test = is_tested_before(training, iteration) and not is_tested
    if iteration == training.iterations:
        return [f"the last test{_part_status(test)}" if needs_test else "only the summary is left"]
    if training.rerun_tests is not None:
        return [f"the test before iteration {iteration}{_part_status(test)}"]
    # A run can stop after its games have ended and before the log records this.
    if stages.find_last(GamesPlayed, iteration) is None and not _is_done(games):
        return [f"iteration {iteration}: its games{_part_status(games)}"]
    built = stages.find_last(DatasetsBuilt, iteration)
    if built is None:
        step = f"test{_part_status(test)}" if needs_test else "datasets"
        return [f"iteration {iteration}: its {step}"]
    groups = [group for group, report in built.groups.items() if report.examples >= training.min_examples]
    if not groups:
        return [f"iteration {iteration}: no group has enough examples for training"]
    records = {group: stages.group_records(GroupRecord, iteration, group) for group in groups}
    return [f"iteration {iteration}: {group}: {_training_state(folder, records[group], group)}" for group in groups]


def _is_done(part: RunFolder) -> bool:
    return part.manifest_path.is_file() and part.manifest().status == Status.DONE


def _part_status(part: RunFolder) -> str:
    """Return the id and status of a part of a training run in parentheses, or "" if it has not started."""
    return f" ({part.run_id}, {part.manifest().status})" if part.manifest_path.is_file() else ""


def _training_state(folder: RunFolder, records: list[GroupRecord], group: str) -> str:
    """Return the state of one group's training in its iteration."""
    if not records:
        return "the training is next, or is running"
    last = records[-1]
    if isinstance(last, TrainingEnded):
        return f"trained: {escape_controls(last.model)}"
    if isinstance(last, JobEnded):
        return (
            f"training {last.state}: {escape_controls(last.message)}\n  run the same command again to start a new job"
        )
    if isinstance(last, JobWaited):
        guide = job_folder(folder, last.iteration, group) / "README.txt"
        return f"waits for a model that you train ({guide}); continue with --set-model {group}=NAME"
    return "the training is running, or was running when the run stopped"
