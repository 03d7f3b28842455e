"""The records of a run into the debates that another judge is asked about: free and offline."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.package_data import is_file
from runner.base.text import comma_join, counted
from runner.game.protocols.rewards import forced_decision
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_debates import Debate, Debates, context_of, key_of
from runner.runs.finished.reconstruction import Reconstructor, played_plan, read_debates
from runner.spec.loader import Spec
from runner.spec.rejudged_run import DEBATES


def games_of(spec: Spec) -> Plan:
    """The plan of a benchmark, with the debates that it judges, where it does.

    Raises:
        UsageError: there is nothing to judge in the run that it names, or the spec would change its debates.
        RunError: that run's records cannot be read.
    """
    if spec.rejudged is None:
        return Plan(spec)
    debates = _found(spec.rejudged.path, spec.rejudged.journal_sha256)
    debates.check(spec)
    return Plan(spec, debates)


def check_debates(plan: Plan, folder: RunFolder) -> None:
    """See that a run which goes on judges what it has judged so far, and perhaps more.

    Raises:
        RunDirectoryError: a debate has changed.
        RunError: the debates that were saved with it cannot be read.
    """
    saved = folder.path / "inputs" / DEBATES
    if plan.debates is not None and is_file(saved):
        plan.debates.check_same(read_debates(saved), f"run {folder.run_id}")


def what_is_judged(plan: Plan) -> list[str]:
    """What to say of a plan's debates before any is judged."""
    debates = plan.debates
    if debates is None:
        return []
    left = sum(debates.left_out.values())
    why = comma_join([f"{count} {reason}" for reason, count in debates.left_out.items()])
    return [f"{counted(left, 'game')} of {debates.run_id} left out: {why}"] if left else []


@lru_cache(maxsize=4)
def _found(path: Path, journal_sha256: str) -> Debates:
    saved = path / "inputs" / DEBATES
    if is_file(path) or is_file(saved):
        return read_debates(path if is_file(path) else saved)
    folder = RunFolder(path)
    manifest = folder.manifest()
    if manifest.is_training_run:
        raise UsageError(
            f"{manifest.run_id} is a training run, whose games are in runs of their own: judge one of those again, "
            f"such as {manifest.run_id}-i0"
        )
    plan = played_plan(folder)
    if plan.shape is not None:
        raise UsageError(f"{manifest.run_id} played trees, which cannot be judged again: their branches share rounds")
    if forced_decision(plan.spec.protocol, 0) is not None:
        raise UsageError(f"{manifest.run_id} has protocol.force_guess: no verdict of a judge counts in its games")
    return _debates(folder, plan, manifest, journal_sha256)


def _debates(folder: RunFolder, plan: Plan, manifest: Manifest, journal_sha256: str) -> Debates:
    reconstructor, protocol = Reconstructor(folder, plan), plan.spec.protocol
    left_out: Counter[str] = Counter()
    by_job: dict[tuple[str, int], Debate] = {}
    try:
        finished = 0
        for rollout in reconstructor.rollouts():
            finished += 1
            debate = Debate.of(rollout, protocol)
            if isinstance(debate, str):
                left_out[debate] += 1
            else:
                by_job[key_of(rollout.job)] = debate
    finally:
        reconstructor.close()
    if finished < plan.size:
        left_out["not finished"] = plan.size - finished
    if not by_job:
        raise UsageError(f"there is nothing to judge in {manifest.run_id}: {comma_join(left_out) or 'it has no game'}")
    stopped = None
    if plan.spec.experiment.until is not None and finished < plan.size:
        stopped = (
            f"judged are the {finished:,} of {plan.size:,} games after which {manifest.run_id} had stopped by its own "
            "verdicts"
        )
    return Debates(
        manifest.run_id,
        manifest.identity,
        journal_sha256,
        context_of(plan.spec),
        plan.spec.experiment.rollouts.per_datapoint,
        dict(left_out),
        by_job,
        stopped,
    )
