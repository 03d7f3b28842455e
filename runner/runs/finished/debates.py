"""Rebuilds the debates of a finished run from its records, so that another judge can judge them.

A debate is the messages of a game without the verdicts. A spec with the key `rejudge` plans such a run.
"""

from __future__ import annotations

from collections import Counter
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from runner.base.errors import UsageError
from runner.base.package_data import is_file
from runner.base.text import comma_join, counted
from runner.game.protocols.rewards import forced_decision
from runner.results.folder import RunFolder
from runner.results.manifest import Manifest
from runner.rollouts.plan import Plan
from runner.rollouts.recorded_debates import Debate, Debates, debate_context, job_key
from runner.runs.finished.reconstruction import Reconstructor, played_plan, read_debates
from runner.spec.loader import Spec
from runner.spec.rejudged_run import DEBATES


def build_games_plan(spec: Spec) -> Plan:
    """Return the plan of a benchmark. If the spec judges debates again, the plan has these debates.

    Raises:
        UsageError: the judged run has no debates, or the spec would change the debates.
        RunError: the judged run's records cannot be read.
    """
    if spec.rejudged is None:
        return Plan(spec)
    debates = _load_debates(spec.rejudged.path, spec.rejudged.journal_sha256)
    debates.check_spec(spec)
    return Plan(spec, debates)


def check_debates(plan: Plan, folder: RunFolder) -> None:
    """Check that a plan still has all debates that its run saved at the start. The plan may have more debates.

    Raises:
        RunDirectoryError: the plan lacks a saved debate, or has changed it.
        RunError: the saved debates cannot be read.
    """
    saved = folder.path / "inputs" / DEBATES
    if plan.debates is not None and is_file(saved):
        plan.debates.check_judged(read_debates(saved), f"run {folder.run_id}")


def check_has_games(manifest: Manifest) -> None:
    """Check that a run has games to judge, and is not a training run or a tournament.

    Raises:
        UsageError: the games are in separate runs.
    """
    if manifest.has_parts:
        raise UsageError(
            f"{manifest.run_id} is {manifest.kind_name}, and its games are separate runs: judge one of these runs "
            f"instead, such as {manifest.example_part}"
        )


def debate_notes(plan: Plan) -> list[str]:
    """Return the notes to show before a run starts: how many games of the judged run have no debate, and why."""
    debates = plan.debates
    if debates is None:
        return []
    omitted = sum(debates.left_out.values())
    reasons = comma_join([f"{count} {reason}" for reason, count in debates.left_out.items()])
    return [f"{counted(omitted, 'game')} of {debates.run_id} left out: {reasons}"] if omitted else []


@lru_cache(maxsize=4)
def _load_debates(path: Path, journal_sha256: str) -> Debates:
    """Read the debates saved in a file or in a run's inputs. If there are none, build them from the run's games.

    Raises:
        UsageError: the run is a training run, played trees or forces its verdicts, or has no debate to judge.
    """
    saved = path / "inputs" / DEBATES
    if is_file(path) or is_file(saved):
        return read_debates(path if is_file(path) else saved)
    folder = RunFolder(path)
    manifest = folder.manifest()
    check_has_games(manifest)
    plan = played_plan(folder)
    if plan.tree_shape is not None:
        raise UsageError(
            f"{manifest.run_id} played trees, which cannot be judged again because branches share rounds; judge a run "
            "without rollouts.num_responses_per_timestep"
        )
    if forced_decision(plan.spec.protocol, 0) is not None:
        raise UsageError(
            f"{manifest.run_id} has protocol.force_guess, so no verdict of a judge counts in its games; judge a run "
            "without protocol.force_guess"
        )
    return _build_debates(folder, plan, manifest, journal_sha256)


def _build_debates(folder: RunFolder, plan: Plan, manifest: Manifest, journal_sha256: str) -> Debates:
    """Rebuild a run's games from its journal, and return their debates.

    Raises:
        UsageError: no game has a debate to judge.
    """
    omitted: Counter[str] = Counter()
    debates_by_job: dict[tuple[str, int], Debate] = {}
    finished_count = 0
    with closing(Reconstructor(folder, plan)) as reconstructor:
        for rollout in reconstructor.rollouts():
            finished_count += 1
            debate_or_reason = Debate.from_rollout(rollout, plan.spec.protocol)
            if isinstance(debate_or_reason, str):
                omitted[debate_or_reason] += 1
            else:
                debates_by_job[job_key(rollout.job)] = debate_or_reason
    if finished_count < plan.size:
        omitted["not finished"] = plan.size - finished_count
    if not debates_by_job:
        reasons = comma_join(omitted) or "no games"
        raise UsageError(f"{manifest.run_id} has no debate to judge ({reasons}); name another run")
    stopping_note = None
    if plan.spec.experiment.until is not None and finished_count < plan.size:
        stopping_note = (
            f"only {finished_count:,} of {plan.size:,} games are judged, because the stopping rule of "
            f"{manifest.run_id} ended that run after them"
        )
    return Debates(
        manifest.run_id, manifest.identity, journal_sha256, debate_context(plan.spec),
        plan.spec.experiment.rollouts.per_datapoint, dict(omitted), debates_by_job, stopping_note,
    )  # fmt: skip
