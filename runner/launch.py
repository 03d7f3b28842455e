"""A spec into a finished run, of either kind: a benchmark plays games, training plays them and changes models."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path

from runner import runs
from runner.errors import UsageError
from runner.models.budget import Amount, Budget
from runner.plan import Plan
from runner.rundir import RunFolder, manifest_of
from runner.runs import RunResult, run_name
from runner.session import ReplayOf, Watch
from runner.spec.load import Spec
from runner.spending import spending


def is_training(spec: Spec) -> bool:
    return spec.experiment.kind == "training"


def run(
    spec: Spec,
    results: str | Path = "results",
    *,
    run_id: str | None = None,
    again: bool = False,
    replay: ReplayOf | None = None,
    budget: Budget | None = None,
    held: Collection[str] = (),
    watch: Watch | None = None,
    set_model: Mapping[str, str] | None = None,
) -> RunResult:
    """Play a spec, going on where an earlier process stopped; see `runner.runs.run` and `runner.training.run.train`.

    Raises:
        UsageError: what was asked is for the other kind of run.
    """
    if not is_training(spec):
        if set_model:
            raise UsageError("--set-model is for training runs; this spec is a benchmark")
        return runs.run(spec, results, run_id=run_id, again=again, replay=replay, budget=budget, held=held, watch=watch)
    if replay is not None:
        raise UsageError("--replay is for benchmarks; replay the games of one iteration: its run is <run id>-i0")
    from runner.training.run import train

    return train(spec, results, run_id=run_id, again=again, budget=budget, held=held, watch=watch, chosen=set_model)


def id_of(spec: Spec, results: Path, *, run_id: str | None, again: bool, replay: bool) -> str:
    """The id that a run of this spec has, or will have."""
    from runner.training.plan import TrainingPlan, check_run_id

    own = TrainingPlan(spec).run_id if is_training(spec) else Plan(spec).run_id
    name = run_id or run_name(own, results, again=again, replay=replay)
    if is_training(spec):
        check_run_id(name)
    return name


def spent(spec: Spec, results: Path, run_id: str) -> Amount:
    """What a run of this spec has spent so far.

    Raises:
        RunDirectoryError: the folder is another spec's run, whose journal says nothing to this one.
    """
    folder = RunFolder(results / "runs" / run_id)
    if not is_training(spec):
        manifest_of(Plan(spec), folder)
        return spending(Plan(spec), folder)
    from runner.training.plan import TrainingPlan
    from runner.training.run import training_spending

    manifest_of(Plan(spec), folder, TrainingPlan(spec))
    return training_spending(results, run_id)
