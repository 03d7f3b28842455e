"""A spec into a finished run, of either kind: a benchmark plays games, training plays them and changes models."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from runner.errors import Place, Problem, UsageError
from runner.models.layers.budget import Budget
from runner.models.tally import Tally
from runner.results.folder import RunFolder
from runner.results.manifest import manifest_of
from runner.rollouts.plan import Plan
from runner.runs.accounting import Watch
from runner.runs.run import RunResult, run_name
from runner.runs.run import run as run_benchmark
from runner.runs.spending import spending
from runner.runs.wiring import ReplayOf
from runner.spec.load import Spec


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
    locked_runs: Collection[str] = (),
    watch: Watch | None = None,
    set_model: Mapping[str, str] | None = None,
) -> RunResult:
    """Play a spec, going on where an earlier process stopped; see `runner.runs.run` and `runner.training.run`.

    Raises:
        UsageError: what was asked is for the other kind of run.
    """
    if not is_training(spec):
        if set_model:
            raise UsageError("--set-model is for training runs; this spec is a benchmark")
        return run_benchmark(
            spec,
            results,
            run_id=run_id,
            again=again,
            replay=replay,
            budget=budget,
            locked_runs=locked_runs,
            watch=watch,
        )
    if replay is not None:
        raise UsageError("--replay is for benchmarks; replay the games of one iteration: its run is <run id>-i0")
    from runner.training.run import train

    return train(
        spec,
        results,
        run_id=run_id,
        again=again,
        budget=budget,
        locked_runs=locked_runs,
        watch=watch,
        manual_models=set_model,
    )


def id_of(spec: Spec, results: Path, *, run_id: str | None, again: bool, replay: bool) -> str:
    """The id that a run of this spec has, or will have."""
    from runner.training.plan import check_run_id

    name = run_id or run_name(_own_id(spec), results, again=again, replay=replay)
    if is_training(spec):
        check_run_id(name)
    return name


def _own_id(spec: Spec) -> str:
    from runner.training.plan import TrainingPlan

    return TrainingPlan(spec).run_id if is_training(spec) else Plan(spec).run_id


def sweep_problems(path: str, points: Sequence[Spec]) -> Iterator[Problem]:
    """Points of a spec's sweep that are one run, which would be played once and shown as several."""
    first: dict[str, Spec] = {}
    for spec in points if len(points) > 1 else ():
        other = first.setdefault(_own_id(spec), spec)
        if other is spec:
            continue
        free = [key for key, value in spec.point.items() if other.point[key] != value]
        for key in free:
            yield Problem(
                Place(path), f"sweep.{key}",
                "this key is no part of what a run is, so that its values are all one run; sweep over others, and "
                "play each value by itself with a --run-id of its own",
            )  # fmt: skip
        if not free:
            yield Problem(Place(path), "sweep", "a value is given twice, which would be one run; leave one out")


def spent(spec: Spec, results: Path, run_id: str) -> Tally:
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
