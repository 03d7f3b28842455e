"""Runs a plan of either kind: a benchmark plays games; a training run also trains models on them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from runner.base.errors import UsageError, Waiting
from runner.models.usage_totals import UsageTotals
from runner.results.folder import part_id, split_part
from runner.results.leaderboard.results_folder import LAST, Results
from runner.rollouts.plan import Plan
from runner.rollouts.template_check import check_templates
from runner.runs.execution.spending import spending
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import WhichRun
from runner.runs.session.chat_format_lock import with_original_formats
from runner.runs.session.execution_check import check_engine, check_results_are_permanent, shared_engine
from runner.runs.session.parallel_runs import GamesRun, run_together
from runner.runs.session.run import RunOptions, run_games
from runner.spec.loader import Spec
from runner.training.plan import AnyPlan, TrainingPlan, check_run_id, plan_of
from runner.training.trust import check_trust


def run_spec(spec: Spec, results: Results, options: RunOptions, which: WhichRun) -> FinishedRun:
    """Run a spec under the id that `which` selects; `options.replay` equals `which.replay`. Raises as `run_plan`."""
    plan, note = with_original_formats(plan_of(spec), results, which)
    result = run_plan(plan, results, choose_run_id(plan, results, which), options)
    return result if note is None else replace(result, notes=(note, *result.notes))


@dataclass(frozen=True)
class PlannedRun:
    """A plan with the id and the options of its run."""

    plan: AnyPlan
    run_id: str
    options: RunOptions


def run_all(runs: Sequence[PlannedRun], results: Results, ended: Callable[[int, FinishedRun | Waiting], None]) -> None:
    """Run plans: benchmarks in parallel, training runs one after another.

    `ended` is called in the order of `runs`, with the index and the result of each. If a training run is one of
    several and waits for the user, its result is the `Waiting` error.

    Raises:
        UsageError, NipRunError: as `run_plan`; a failure stops the other runs.
    """
    first = 0
    with shared_engine(run.plan.spec.experiment.execution for run in runs):
        for group in _parallel_groups(runs, results):
            if len(group) > 1:
                _run_benchmarks(group, results, first, ended)
            else:
                ended(first, _run_one(group[0], results, is_only=len(runs) == 1))
            first += len(group)


def _run_benchmarks(
    runs: Sequence[PlannedRun], results: Results, first: int, ended: Callable[[int, FinishedRun | Waiting], None]
) -> None:
    games = [GamesRun(_checked_plan(run, results), run.run_id, run.options) for run in runs]
    run_together(games, results, lambda index, result: ended(first + index, result))


def _run_one(run: PlannedRun, results: Results, *, is_only: bool) -> FinishedRun | Waiting:
    try:
        return run_plan(run.plan, results, run.run_id, run.options)
    except Waiting as error:
        if is_only:
            raise
        return error


def _parallel_groups(runs: Sequence[PlannedRun], results: Results) -> Iterator[list[PlannedRun]]:
    """Split runs into groups of neighbors that can run in parallel: no training run, and none that needs another."""
    group: list[PlannedRun] = []
    for run in runs:
        if group and not all(_may_join(run, member, results) for member in group):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _may_join(run: PlannedRun, neighbor: PlannedRun, results: Results) -> bool:
    if isinstance(run.plan, TrainingPlan) or isinstance(neighbor.plan, TrainingPlan) or run.run_id == neighbor.run_id:
        return False
    concurrencies = [plan.spec.experiment.rollouts.concurrency for plan in (run.plan, neighbor.plan)]
    return concurrencies[0] == concurrencies[1] and not _needs(run.plan.spec, neighbor.run_id, results)


def _needs(spec: Spec, run_id: str, results: Results) -> bool:
    """Return whether a spec reads another run's results after it was loaded.

    The model of `from_run` was read before.
    """
    until, path = spec.experiment.until, results.run(run_id).path.resolve()
    paths = [*spec.replays.values(), *([] if spec.rejudged is None else [spec.rejudged.path])]
    compared = None if until is None else until.compare
    if compared is not None:
        if compared == LAST or run_id.startswith(compared):
            return True
        paths.append(Path(compared))
    return path in {path_read.resolve() for path_read in paths}


def run_plan(plan: AnyPlan, results: Results, run_id: str, options: RunOptions) -> FinishedRun:
    """Run a plan under a run id, or resume that run.

    Raises:
        UsageError: an option is for the other kind of run, or a fetched spec needs a permission that was not given.
        NipRunError: see `runner.runs.session.run.run_games` and `runner.training.run.train`.
    """
    if not isinstance(plan, TrainingPlan):
        return run_games(_checked_plan(PlannedRun(plan, run_id, options), results), results, run_id, options)
    check_trust(plan, options.replay, options.allowed_keys)
    check_engine(plan.spec.experiment.execution, asks=True)
    check_results_are_permanent(results)
    _check_templates(plan, run_id, results)
    if options.replay is not None:
        raise UsageError(
            "--replay (in Python: replay) is only for benchmarks; to replay the games of one iteration, give the id of "
            "its run, such as <run id>-i0"
        )
    from runner.training.run import train

    with shared_engine([plan.spec.experiment.execution]):
        return train(plan, results, run_id, options)


def _checked_plan(run: PlannedRun, results: Results) -> Plan:
    """Return the plan of a benchmark after checking that it may run.

    Raises:
        UsageError: an option is for training runs, a fetched spec needs a permission that was not given, or the
            results folder would be deleted.
    """
    assert isinstance(run.plan, Plan)
    check_trust(run.plan, run.options.replay, run.options.allowed_keys)
    check_engine(run.plan.spec.experiment.execution, asks=run.options.replay is None)
    check_results_are_permanent(results)
    _check_templates(run.plan, run.run_id, results)
    if run.options.manual_models:
        raise UsageError("--set-model (in Python: set_model) is only for training runs; this spec is a benchmark")
    return run.plan


def _check_templates(plan: AnyPlan, run_id: str, results: Results) -> None:
    """Render the templates of a run that has not started yet. Raises `SpecError` if one fails."""
    if results.run(run_id).manifest_path.exists():
        return
    for games_plan in {id(games.spec.prompts): games for games in plan.all_games()}.values():
        check_templates(games_plan)


def choose_run_id(plan: AnyPlan, results: Results, which: WhichRun, *, given: Collection[str] = ()) -> str:
    """Return the id of a plan's run; `given` are ids that other runs of this command will have.

    Raises:
        UsageError: the id is too long for a training run.
    """
    is_replay = which.replay is not None
    name = which.run_id or results.name_for(plan.run_id, again=which.again, replay=is_replay, reserved=given)
    if isinstance(plan, TrainingPlan):
        check_run_id(name)
    shard = plan.spec.shard
    return name if shard is None or split_part(name)[1] is not None else part_id(name, shard)


def spending_of_plan(plan: AnyPlan, results: Results, run_id: str) -> UsageTotals:
    """Return what a plan's run has spent so far.

    Raises:
        RunDirectoryError: the folder has the run of another spec.
    """
    results.manifest_of(plan, run_id)
    if isinstance(plan, TrainingPlan):
        from runner.training.run import spent_on_games

        return spent_on_games(results, run_id)
    return spending(plan, results.run(run_id))
