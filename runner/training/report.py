"""A training run's stages into what people and tables are told: its curve, its sums, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from runner.errors import RunError
from runner.results.folder import RunFolder
from runner.results.results import Results
from runner.runs.reconstruct import saved_plan
from runner.spec.trainers import TrainingSettings
from runner.storage.atomic import read_json
from runner.text import escape_controls
from runner.training.plan import part_id
from runner.training.state import (
    DATASETS,
    ITERATIONS,
    JOB,
    JOB_ENDED,
    PLAYED,
    SWITCHED,
    TESTED,
    TRAINED,
    WAITED,
    Record,
    Stages,
    read_stages,
)


def progress(folder: RunFolder) -> dict[str, Any]:
    """What a run that is not finished has come to, in the form of `summary`, with what comes next under `next`.

    Raises:
        RunError, SpecError: a file of the run is gone or damaged.
    """
    stages, training = read_stages(folder.path), saved_plan(folder).spec.experiment.training
    assert training is not None
    parts = Results.of(folder).parts_of(folder.run_id)
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
            {name: record[name] for name in ("iteration", "outcomes", "models")} for record in stages.all(SWITCHED)
        ],
        "tests": [_test(folder, record) for record in stages.all(TESTED)],
    }


def check_part(folder: RunFolder, record: Record) -> RunFolder:
    """The finished games or test that a record is of.

    Raises:
        RunError: it is gone; what to do.
    """
    part = folder.beside(record["run_id"])
    for path in (part.manifest_path, part.spec, part.journal, part.metrics):
        if not path.is_file():
            what = "the games" if record["stage"] == PLAYED else "the test"
            raise RunError(
                f"{path} is gone; run {part.run_id} is a part of training run {folder.run_id}: {what} of iteration "
                f"{record['iteration']}. Restore {part.path}, or begin anew with --again"
            )
    return part


def _test(folder: RunFolder, record: Record) -> dict[str, Any]:
    """How the models measured before an iteration."""
    part = check_part(folder, record)
    accuracy = next(m for m in read_json(part.metrics)["metrics"] if m["metric"] == "accuracy")
    shown = {name: accuracy[name] for name in ("value", "ci_low", "ci_high", "n", "clusters")}
    return {"iteration": record["iteration"], "run_id": part.run_id, "accuracy": shown}


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


def next_steps(folder: RunFolder, stages: Stages, training: TrainingSettings) -> list[str]:
    """Where a run that is not finished stands: a line, or one for each model group that is trained or waited for."""
    iteration = len(stages.all(SWITCHED))
    test = _part(folder, part_id(folder.run_id, iteration, "benchmark"))
    if iteration == training.iterations:
        return [f"the last test{test}"]
    if stages.one(PLAYED, iteration) is None:
        games = _part(folder, part_id(folder.run_id, iteration, "training"))
        return [f"iteration {iteration}: its games{games}"]
    built = stages.one(DATASETS, iteration)
    if built is None:
        tested = stages.one(TESTED, iteration) is not None
        return [f"iteration {iteration}: its {'datasets' if tested or not test else f'test{test}'}"]
    return [
        f"iteration {iteration}: {group}: {_standing(folder, list(_of_group(stages, iteration, group)), group)}"
        for group, report in built["groups"].items()
        if report["examples"] >= training.min_examples
    ] or [f"iteration {iteration}: nobody is trained, for lack of examples"]


def _part(folder: RunFolder, run_id: str) -> str:
    """How a part of a training run stands, in brackets; nothing where it has not begun."""
    part = folder.beside(run_id)
    return f" ({run_id}, {part.manifest().status})" if part.manifest_path.is_file() else ""


def _of_group(stages: Stages, iteration: int, group: str) -> Iterator[Record]:
    for record in stages.records:
        if record["iteration"] == iteration and record.get("group") == group:
            yield record


def _standing(folder: RunFolder, records: list[Record], group: str) -> str:
    """How one group's training stands in its iteration."""
    if not records:
        return "its training is next, or goes on"
    last = records[-1]
    if last["stage"] == TRAINED:
        return f"trained: {escape_controls(last['model'])}"
    if last["stage"] == JOB_ENDED:
        return f"training {last['state']}: {escape_controls(last['message'])}\n  the same command begins a new job"
    if last["stage"] == WAITED:
        guide = folder.path / ITERATIONS / str(last["iteration"]) / f"{group}.job" / "README.txt"
        return f"waits for a model that you train ({guide}); go on with --set-model {group}=NAME"
    assert last["stage"] == JOB
    return "its training goes on, or did when the run stopped"
