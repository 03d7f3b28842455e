"""Tables, metrics and counts recomputed from a run's journal, without asking any model.

The run may be a stranger's: its plan is compared with the size of its journal before anything is replayed.
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
from runner.results.baseline_scores import FILE, frozen
from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.results.stopping_rule import StoppingDecision
from runner.results.tables import COLUMNS
from runner.rollouts.plan import Plan
from runner.runs.execution.accounting import Accounting
from runner.runs.execution.sinks import RecordSinks
from runner.runs.execution.spending import run_costs, spending
from runner.runs.finished.reconstruction import Reconstructor, played_plan

SPARE_GAMES = 100_000
"""Games that a run may plan beyond its answers if it stopped early or judges debates."""

SPARE_SHARE = 1_000


@dataclass(frozen=True)
class RecomputedRun:
    """Results recomputed from a journal."""

    folder: RunFolder
    """A folder with the tables and `metrics.json`, which exists until the block ends."""
    metrics: Mapping[str, Any]
    counts: Mapping[str, Any]
    """The counts of the manifest."""


@contextmanager
def recomputed(folder: RunFolder, beside: Path | None = None) -> Iterator[RecomputedRun]:
    """Recompute a run from its journal, in a temporary folder below `beside` or that of the system.

    Raises:
        RunDirectoryError: its spec or inputs are not those that were played, or it plans more games than it has.
        RunError, SpecError: a file of it is missing or damaged.
    """
    plan = played_plan(folder)
    experiment = replace(plan.spec.experiment, fine_tune=None)
    plan = Plan(replace(plan.spec, experiment=experiment), plan.debates)
    with TemporaryDirectory(prefix=".nip-run-", dir=beside) as place:
        target = RunFolder(Path(place), folder.manifest().run_id)
        yield _recompute(folder, plan, target)


def _recompute(folder: RunFolder, plan: Plan, target: RunFolder) -> RecomputedRun:
    with closing(Reconstructor(folder, plan, with_failures=True)) as journal:
        check_claims(folder, plan, len(journal))
        until = plan.spec.experiment.until
        decision = None if until is None else StoppingDecision(plan, until, frozen(folder.path / "inputs" / FILE))
        sinks, accounting = RecordSinks(plan, target), Accounting(plan, run_costs(plan), None)
        for rollouts in journal.by_job():
            for rollout in rollouts:
                sinks.add(rollout)
                accounting.add(rollout)
            sinks.end_job(rollouts)
            accounting.end_job()
            if decision is not None:
                decision.add(rollouts)
        sinks.seal()
        sinks.finish(decision)
    counts = {**accounting.finished(spending(plan, folder)), "status": accounting.status().value}
    return RecomputedRun(target, read_json(target.metrics), counts)


def check_claims(folder: RunFolder, plan: Plan, records: int) -> None:
    """Check that a run does not plan more games than its journal can have, which would only waste time.

    Raises:
        RunDirectoryError: it plans more.
    """
    manifest = folder.manifest()
    planned = plan.blocks * len(plan.variants)
    most = records
    if plan.debates is not None or plan.spec.experiment.until is not None or manifest.status not in PLAYED:
        most = SPARE_SHARE * records + SPARE_GAMES
    if planned > most or (manifest.rollouts or 0) > max(records, 1) * (plan.shape.branches if plan.shape else 1):
        raise RunDirectoryError(
            f"{folder.path} cannot be what was played: it says {max(planned, manifest.rollouts or 0):,} games, and its "
            f"journal holds {records:,} answers"
        )


def write_tables(folder: RunFolder) -> None:
    """Write the tables of a fetched run, which its release does not have. Raises as `recomputed`."""
    with recomputed(folder, folder.path.parent) as made:
        for name in COLUMNS:
            made.folder.table(name).replace(folder.table(name))
