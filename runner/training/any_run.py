"""A run of either kind, named, run and counted: a benchmark plays games, training plays them and changes models."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from runner.errors import UsageError
from runner.models.keys import KeyUse, check_allowed
from runner.models.tally import Tally
from runner.results.results import Results
from runner.runs.as_begun import as_begun
from runner.runs.result import RunResult
from runner.runs.run import RunOptions, run_games
from runner.runs.spending import spending
from runner.runs.which import ReplayOf, WhichRun
from runner.spec.load import Spec
from runner.training.keys import key_uses_of
from runner.training.plan import AnyPlan, TrainingPlan, check_run_id, plan_of


def run_spec(spec: Spec, results: Results, options: RunOptions, which: WhichRun) -> RunResult:
    """Run a spec as the run that is meant; `options.replay` is that of `which`. Raises as `run_plan`."""
    plan, begun = as_begun(plan_of(spec), results, which)
    result = run_plan(plan, results, name_of(plan, results, which), options)
    return result if begun is None else replace(result, notes=(begun, *result.notes))


def run_plan(plan: AnyPlan, results: Results, run_id: str, options: RunOptions) -> RunResult:
    """Run a plan under a name, going on where an earlier process stopped.

    Raises:
        UsageError: what was asked is for the other kind of run; or a spec from elsewhere wants a key.
        NipRunError: see `runner.runs.run.run_games` and `runner.training.run.train`.
    """
    if plan.spec.fetched is not None:
        check_allowed(keys_sent(plan, options.replay), options.allowed_keys, plan.spec.fetched)
    if not isinstance(plan, TrainingPlan):
        if options.manual_models:
            raise UsageError("--set-model is for training runs (in Python: set_model); this spec is a benchmark")
        return run_games(plan, results, run_id, options)
    if options.replay is not None:
        raise UsageError(
            "--replay is for benchmarks (in Python: replay); replay the games of one iteration: its run is <run id>-i0"
        )
    from runner.training.run import train

    return train(plan, results, run_id, options)


def keys_sent(plan: AnyPlan, replay: ReplayOf | None = None) -> tuple[KeyUse, ...]:
    """Which variables a run of a plan sends where; a whole replay asks nobody."""
    return () if replay is not None and replay.until_round is None else key_uses_of(plan)


def name_of(plan: AnyPlan, results: Results, which: WhichRun, *, given: Collection[str] = ()) -> str:
    """The id that a plan's run has, or will have; `given` are names that other runs are to have.

    Raises:
        UsageError: a training run cannot have this id.
    """
    is_replay = which.replay is not None
    name = which.run_id or results.name_for(plan.run_id, again=which.again, replay=is_replay, given=given)
    if isinstance(plan, TrainingPlan):
        check_run_id(name)
    return name


def spent(plan: AnyPlan, results: Results, run_id: str) -> Tally:
    """What a plan's run has spent so far.

    Raises:
        RunDirectoryError: the folder is another spec's run, whose journal says nothing to this one.
    """
    results.manifest_of(plan, run_id)
    if isinstance(plan, TrainingPlan):
        from runner.training.run import spent_on_games

        return spent_on_games(results, run_id)
    return spending(plan, results.run(run_id))
