"""Recompute tables, metrics and counts from a run's journal, without calls to models, for `get` and `verify`.

The run may come from an untrusted publisher who claims so many games that a replay would not end. So its number of
games is first compared with the number of answers in its journal.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.base.errors import RunDirectoryError
from runner.base.storage.atomic_files import read_json
from runner.results.baseline_scores import read_baseline
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.results.stopping_rule import StoppingDecision
from runner.results.table_columns import COLUMNS
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.rollout_writer import RolloutWriter
from runner.runs.execution.spending import max_spending, run_costs
from runner.runs.finished.reconstruction import Reconstructor, played_plan

MAX_UNANSWERED_GAMES = 100_000
"""Maximum number of planned games without answers, for runs that need not have an answer for each planned game.

These are runs that may stop early, are unfinished, or judge debates.
"""

UNANSWERED_GAMES_PER_ANSWER = 1_000
"""Number of additional games without answers that such a run may plan for each of its answers."""


@dataclass(frozen=True)
class RecomputedRun:
    """Results recomputed from a journal."""

    folder: RunFolder
    """A temporary folder with the tables and `metrics.json`. It exists during the `with` block of `recompute_run`."""
    metrics: Mapping[str, Any]
    counts: Mapping[str, Any]
    """The counts that a manifest records, such as the number of rollouts."""


@contextmanager
def recompute_run(folder: RunFolder, parent: Path | None = None) -> Iterator[RecomputedRun]:
    """Recompute a run from its journal, in a temporary folder, which is in `parent` or in the system's default folder.

    Raises:
        RunDirectoryError: the spec or inputs were changed after the run, or the run claims more games than its
            journal has answers for.
        RunError, SpecError: a file of the run is missing or damaged.
    """
    plan = played_plan(folder)
    experiment = replace(plan.spec.experiment, fine_tune=None, metrics=())  # plugins are not imported for this
    plan = Plan(replace(plan.spec, experiment=experiment), plan.debates)
    with TemporaryDirectory(prefix=".nip-run-", dir=parent) as temporary:
        target = RunFolder(Path(temporary), folder.manifest().run_id)
        yield _recompute(folder, plan, target)


def _recompute(folder: RunFolder, plan: Plan, target: RunFolder) -> RecomputedRun:
    with closing(Reconstructor(folder, plan, with_failures=True)) as reconstructor:
        check_claims(folder, plan, len(reconstructor))
        until = plan.spec.experiment.until
        decision = None if until is None else StoppingDecision(plan, until, read_baseline(folder.path))
        rollout_writer, accounting = RolloutWriter(plan, target), Accounting(plan, run_costs(plan), None)
        for rollouts in reconstructor.rollouts_by_job():
            for rollout in rollouts:
                rollout_writer.add(rollout)
                accounting.add(rollout)
            rollout_writer.end_job(rollouts)
            accounting.end_job()
            if decision is not None:
                decision.add(rollouts)
        rollout_writer.seal()
        rollout_writer.finish(decision)
    counts = {**accounting.final_counts(max_spending(plan, folder)), "status": accounting.status().value}
    return RecomputedRun(target, read_json(target.metrics), counts)


def check_claims(folder: RunFolder, plan: Plan, record_count: int) -> None:
    """Check that a run does not claim more games than a journal with `record_count` answers can have.

    Raises:
        RunDirectoryError: the run claims more games.
    """
    manifest = folder.manifest()
    planned_games, rollouts = plan.block_count * len(plan.variants), manifest.rollouts or 0
    branches = plan.tree_shape.branches if plan.tree_shape else 1
    max_planned, max_rollouts = record_count, max(record_count, 1) * branches
    if plan.debates is not None or plan.spec.experiment.until is not None or manifest.status not in PLAYED:
        max_planned = UNANSWERED_GAMES_PER_ANSWER * record_count + MAX_UNANSWERED_GAMES
    if planned_games > max_planned or rollouts > max_rollouts:
        raise RunDirectoryError(
            f"{folder.path} is not the run that was played: its manifest and spec claim "
            f"{max(planned_games, rollouts):,} games, but its journal has only {record_count:,} answers"
        )


def write_tables(folder: RunFolder) -> None:
    """Write the tables of a fetched run, because releases contain none, and the hashes of tables and metrics.

    Raises as `recompute_run`.
    """
    folder.check(folder.metrics)  # `seal` below writes the hash of the metrics, too, so they must be unchanged
    with recompute_run(folder, folder.path.parent) as run:
        for name in COLUMNS:
            run.folder.table(name).replace(folder.table(name))
    folder.seal(*COLUMNS)
