"""Plans of runs, and the budgets that they share. All points of a spec share a budget, which includes past spending."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace

from runner.models.layers.budget import Budget
from runner.models.usage_totals import UsageTotals
from runner.results.leaderboard.results_folder import Results
from runner.rollouts.plan import Plan
from runner.runs.execution.process import raise_open_files_limit
from runner.runs.execution.spending import max_spending, spent_on_parts
from runner.runs.session.run import RunOptions
from runner.training.plan import AnyPlan


@dataclass(frozen=True)
class PlannedRun:
    """A plan with the id and the options of its run."""

    plan: AnyPlan
    run_id: str
    options: RunOptions
    budget_key: Hashable = None
    """Runs with the same key, such as the points of a spec, share a budget."""


@contextmanager
def open_shared_budgets(runs: Sequence[PlannedRun], results: Results) -> Iterator[list[PlannedRun]]:
    """Open one budget for all runs with the same key, and yield the runs with these budgets.

    Runs with a budget stay locked until the block ends, so that no other process can play them and change the spending.

    Raises:
        RunDirectoryError: another process has locked one of the runs, or a folder has another spec's run.
    """
    budgets: dict[Hashable, Budget] = {}
    locked_ids: set[str] = set()
    counted_runs: set[tuple[Hashable, str]] = set()
    raise_open_files_limit(len(runs))
    with ExitStack() as locks:
        for run in runs:
            settings = run.plan.games.shard_experiment.budget
            if not settings.limited:
                continue
            budget = budgets.setdefault(run.budget_key, Budget(settings))
            if run.run_id not in locked_ids:
                locks.enter_context(results.lock(run.run_id))
                locked_ids.add(run.run_id)
            amount = spending_of_plan(run.plan, results, run.run_id)
            if (run.budget_key, run.run_id) not in counted_runs:
                budget.add_spent(amount)
                counted_runs.add((run.budget_key, run.run_id))
        yield [
            replace(
                run,
                options=replace(run.options, budget=budgets.get(run.budget_key), holds_lock=run.run_id in locked_ids),
            )
            for run in runs
        ]


def spending_of_plan(plan: AnyPlan, results: Results, run_id: str) -> UsageTotals:
    """Return the usage and cost of a plan's run so far.

    Raises:
        RunDirectoryError: the folder has the run of another spec.
    """
    results.manifest_of(plan, run_id)
    return max_spending(plan, results.run(run_id)) if isinstance(plan, Plan) else spent_on_parts(results, run_id)
