"""The budgets of sweeps: one for all points of a spec, with what their journals hold counted in."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from runner.models.layers.budget import Budget
from runner.results.leaderboard.results_folder import Results
from runner.runs.execution.process import allow_open_files
from runner.training.dispatch import spent
from runner.training.plan import AnyPlan


@dataclass(frozen=True)
class Budgets:
    """The budgets of the runs of one command, and which of them are locked for that."""

    of: Mapping[Hashable, Budget]
    """By what the runs that share one have in common."""
    locked: frozenset[str]


@contextmanager
def shared_budgets(runs: Sequence[tuple[Hashable, AnyPlan, str]], results: Results) -> Iterator[Budgets]:
    """One budget for all runs whose first element is equal: the file of their spec. The last is the run's id.

    All of them stay locked until the block ends: what was counted is true only as long as nobody else pays for any of
    them. A second process that comes to one of them is told who has it, before it has asked for anything.

    Raises:
        RunDirectoryError: another process has one of them, or a folder is another spec's run.
    """
    budgets: dict[Hashable, Budget] = {}
    locked: set[str] = set()
    counted: set[tuple[Hashable, str]] = set()
    allow_open_files(len(runs))
    with ExitStack() as locks:
        for key, plan, run_id in runs:
            settings = plan.games.share.budget
            if not settings.limited:
                continue
            budget = budgets.setdefault(key, Budget(settings))
            if run_id not in locked:
                locks.enter_context(results.lock(run_id))
                locked.add(run_id)
            amount = spent(plan, results, run_id)
            if (key, run_id) not in counted:
                budget.add_spent(amount)
                counted.add((key, run_id))
        yield Budgets(budgets, frozenset(locked))
