"""Runs plans of all kinds: a benchmark plays games, a training run also trains models, a tournament rates players.

The command line and Python start all runs here.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from runner.base.errors import UsageError, Waiting
from runner.results.folder import part_id, split_part
from runner.results.leaderboard.results_folder import LAST, Results
from runner.rollouts.plan import Plan
from runner.rollouts.template_check import check_templates
from runner.runs.finished.result import FinishedRun
from runner.runs.finished.selection import RunSelection
from runner.runs.session.execution_check import check_engine, check_results_are_permanent, shared_engine
from runner.runs.session.original_settings import with_original_settings
from runner.runs.session.parallel_runs import run_together
from runner.runs.session.run import GamesRun, RunOptions, check_page, run_games
from runner.runs.tournaments.plan import TournamentPlan
from runner.spec.loader import Spec
from runner.training.plan import AnyPlan, plan_of
from runner.training.sweep_budgets import PlannedRun, open_shared_budgets
from runner.training.trust import check_trust


def run_spec(spec: Spec, results: Results, options: RunOptions, selection: RunSelection) -> FinishedRun:
    """Run a spec as the selected run, and return the result. `options.replay` equals `selection.replay`.

    Raises:
        UsageError, NipRunError: see `run_plan`.
    """
    plan, note = with_original_settings(plan_of(spec), results, selection)
    result = run_plan(PlannedRun(plan, choose_run_id(plan, results, selection), options), results)
    return result if note is None else replace(result, notes=(note, *result.notes))


OnResult = Callable[[int, FinishedRun | Waiting], None]
"""Called with the index of a run and its result, or with `Waiting` if it waits for the user to train a model."""


def run_all(runs: Sequence[PlannedRun], results: Results, on_result: OnResult) -> None:
    """Run plans with their shared budgets: benchmarks in parallel, training runs and tournaments one by one.

    `on_result` is called in the order of `runs`. If there is only one run and it waits for the user, `Waiting` is
    raised instead.

    Raises:
        UsageError, NipRunError: see `run_plan`. An error stops the other runs; for an exhausted budget, see
            `run_together`.
    """
    first = 0
    with (
        open_shared_budgets(runs, results) as budgeted_runs,
        shared_engine(run.plan.spec.experiment.execution for run in runs),
    ):
        for group in _parallel_groups(budgeted_runs, results):
            if len(group) > 1:
                _run_benchmarks(group, results, first, on_result)
            else:
                on_result(first, _run_one(group[0], results, is_only=len(runs) == 1))
            first += len(group)


def _run_benchmarks(runs: Sequence[PlannedRun], results: Results, first: int, on_result: OnResult) -> None:
    """Run benchmarks in parallel; `first` is the index of the first benchmark among all runs."""
    run_together(
        [_checked_games(run, results) for run in runs], results, lambda index, result: on_result(first + index, result)
    )


def _run_one(run: PlannedRun, results: Results, *, is_only: bool) -> FinishedRun | Waiting:
    try:
        return run_plan(run, results)
    except Waiting as error:
        if is_only:
            raise
        return error


def _parallel_groups(runs: Sequence[PlannedRun], results: Results) -> Iterator[list[PlannedRun]]:
    """Split runs into groups of consecutive runs that can run in parallel. Other runs are groups of their own."""
    group: list[PlannedRun] = []
    for run in runs:
        if group and not all(_can_run_together(run, member, results) for member in group):
            yield group
            group = []
        group.append(run)
    if group:
        yield group


def _can_run_together(run: PlannedRun, earlier_run: PlannedRun, results: Results) -> bool:
    """Return whether two runs can run in parallel."""
    plans = run.plan, earlier_run.plan
    if not all(isinstance(plan, Plan) for plan in plans) or run.run_id == earlier_run.run_id:
        return False
    concurrencies = [plan.spec.experiment.rollouts.concurrency for plan in plans]
    return concurrencies[0] == concurrencies[1] and not _reads_results(run.plan.spec, earlier_run.run_id, results)


def _reads_results(spec: Spec, run_id: str, results: Results) -> bool:
    """Return whether the run of a spec reads the results of another run while it is played.

    `from_run` does not count, because its model is read when the spec is loaded.
    """
    until = spec.experiment.until
    paths = list(spec.replays.values())
    if spec.rejudged is not None:
        paths.append(spec.rejudged.path)
    if until is not None and until.compare is not None:
        if until.compare == LAST or run_id.startswith(until.compare):
            return True
        paths.append(Path(until.compare))
    # Without paths, nothing is resolved, because this is called for each pair of runs.
    return bool(paths) and results.run(run_id).path.resolve() in {path_read.resolve() for path_read in paths}


def run_plan(run: PlannedRun, results: Results) -> FinishedRun:
    """Run a plan, or resume its run, and return the result.

    Raises:
        UsageError: an option is for the other kind of run, or a fetched spec needs a permission that was not given.
        NipRunError: see `runner.runs.session.run.run_games` and `runner.training.run.train`.
    """
    plan, run_id, options = run.plan, run.run_id, run.options
    if isinstance(plan, Plan):
        return run_games(_checked_games(run, results), results)
    check_trust(plan, options.replay, options.allowed_keys)
    check_engine(plan.spec.experiment.execution)
    check_results_are_permanent(results)
    _check_new_run(run, results)
    with shared_engine([plan.spec.experiment.execution]):
        if isinstance(plan, TournamentPlan):
            return _run_tournament(plan, results, run_id, options)
        if options.replay is not None:
            raise UsageError(
                "--replay (in Python: replay) is only for benchmarks, and this spec is a training run. To replay the "
                "games of one iteration, play a benchmark with --replay and the id of the iteration's run, such as "
                "RUN-i0"
            )
        from runner.training.run import train

        return train(plan, results, run_id, options)


def _run_tournament(plan: TournamentPlan, results: Results, run_id: str, options: RunOptions) -> FinishedRun:
    """Play or resume a tournament.

    Raises:
        UsageError: an option is for other kinds of runs.
    """
    if options.replay is not None or options.manual_models:
        raise UsageError(
            "--replay and --set-model (in Python: replay, set_model) are not for tournaments, and this spec is a "
            "tournament; remove them"
        )
    from runner.runs.tournaments.run import play_tournament

    return play_tournament(plan, results, run_id, options)


def _checked_games(run: PlannedRun, results: Results) -> GamesRun:
    """Check that a benchmark may run, and return its games.

    Raises:
        UsageError: an option is for training runs, a fetched spec needs a permission that was not given, or Ray would
            delete the results folder.
    """
    assert isinstance(run.plan, Plan)
    check_trust(run.plan, run.options.replay, run.options.allowed_keys)
    if run.options.replay is None:
        check_engine(run.plan.spec.experiment.execution)
    check_results_are_permanent(results)
    _check_new_run(run, results)
    if run.options.manual_models:
        raise UsageError(
            "--set-model (in Python: set_model) is only for training runs, and this spec is a benchmark; remove it"
        )
    return GamesRun(run.plan, run.run_id, run.options)


def _check_new_run(run: PlannedRun, results: Results) -> None:
    """Check that people can be asked and that templates can be rendered, if the run has not started yet.

    Raises:
        UsageError: there is no page where people answer.
        SpecError: a template fails.
    """
    if results.run(run.run_id).manifest_path.exists():
        return
    for games_plan in {id(games.spec.prompts): games for games in run.plan.list_game_plans()}.values():
        check_page(games_plan, run.options)
        check_templates(games_plan)


def choose_run_id(plan: AnyPlan, results: Results, selection: RunSelection, *, taken_ids: Collection[str] = ()) -> str:
    """Return the id of a plan's run; `taken_ids` are the ids of other runs of this command.

    Raises:
        UsageError: the id is too long for a run with parts.
    """
    again, is_replay = selection.again, selection.replay is not None
    name = selection.run_id or results.name_for(plan.run_id, again=again, replay=is_replay, reserved=taken_ids)
    if not isinstance(plan, Plan):
        plan.check_run_id(name)
    shard = plan.spec.shard
    return name if shard is None or split_part(name)[1] is not None else part_id(name, shard)
