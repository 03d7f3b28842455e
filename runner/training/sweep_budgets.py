"""Opens the budgets of sweeps. All points of a spec share a budget, which includes their spending so far.

The command line and Python use it before they start the runs of a sweep.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from runner.models.layers.budget import Budget
from runner.results.leaderboard.results_folder import Results
from runner.runs.execution.process import allow_open_files
from runner.training.dispatch import spending_of_plan
from runner.training.plan import AnyPlan


@dataclass(frozen=True)
class Budgets:
    """The budgets of the runs of one command."""

    by_key: Mapping[Hashable, Budget]
    """The budgets, each by the key of the runs that share it."""
    locked_run_ids: frozenset[str]
    """The ids of the runs that are locked."""


@contextmanager
def shared_budgets(runs: Sequence[tuple[Hashable, AnyPlan, str]], results: Results) -> Iterator[Budgets]:
    """Open one budget for all runs with the same key, and yield the budgets.

    A run is a tuple of key, plan and run id; the key is the spec's file. The runs stay locked until the block ends, so
    that no other process can play one of them and change the spending.

    Raises:
        RunDirectoryError: another process has locked one of the runs, or a folder has another spec's run.
    """
    budgets: dict[Hashable, Budget] = {}
    locked_ids: set[str] = set()
    counted_runs: set[tuple[Hashable, str]] = set()
    allow_open_files(len(runs))
    with ExitStack() as locks:
        for key, plan, run_id in runs:
            settings = plan.games.shard_experiment.budget
            if not settings.limited:
                continue
            budget = budgets.setdefault(key, Budget(settings))
            if run_id not in locked_ids:
                locks.enter_context(results.lock(run_id))
                locked_ids.add(run_id)
            amount = spending_of_plan(plan, results, run_id)
            if (key, run_id) not in counted_runs:
                budget.add_spent(amount)
                counted_runs.add((key, run_id))
        yield Budgets(budgets, frozenset(locked_ids))
