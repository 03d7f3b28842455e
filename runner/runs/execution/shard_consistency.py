"""Checks that all processes play a run in the same shards, and that each part has only its own records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from runner.base.errors import RunDirectoryError, RunError, UsageError
from runner.base.storage.atomic_files import read_json
from runner.base.storage.log_lines import first_record
from runner.models.journal_records import SHARD
from runner.results.folder import RunFolder, split_part
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED
from runner.results.spec_changes import is_unchanged
from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import RunPlan
from runner.rollouts.shard_budget import Shares, find_shard_problems
from runner.spec.datasets.shards import Shard

P = TypeVar("P", bound=RunPlan)

MERGED = "merged.json"
"""The file in a run's folder of parts that lists the parts that were merged."""


def parse_shard(text: str, *, again: bool = False, replay: object = None, set_model: object = None) -> Shard:
    """Parse the `--shard` option, and check that no conflicting option is given.

    Raises:
        UsageError: the shard is invalid, or an option conflicts; the notes have the other problems.
    """
    problems = []
    if again:
        problems.append(
            "--shard: --again chooses the next free run id, which may differ between processes; set it with "
            "--run-id NAME instead"
        )
    if replay:
        problems.append("--shard: a replay calls no models and takes seconds; replay the full run without --shard")
    if set_model:
        problems.append("--shard: --set-model is for training runs, which have no shards; remove one of the two")
    try:
        shard = Shard.parse(text)
    except ValueError as error:
        problems.append(f"--shard {error}")
    if problems:
        raise UsageError(problems[0]).with_notes(problems[1:])
    return shard


def in_shard(plan: P, shard: Shard) -> P:
    """Return the plan of one shard of a run.

    Raises:
        UsageError: the run cannot be played in these shards; the notes have the other reasons.
    """
    spec = plan.spec
    problems = [
        f"--shard {shard}: {reason}" for reason in find_shard_problems(spec.experiment, spec.dataset.datapoints, shard)
    ]
    if problems:
        raise UsageError(problems[0]).with_notes(problems[1:])
    return plan.with_spec(replace(spec, shard=shard))


def shares_of(plan: Plan) -> Shares | None:
    """Return the shares of the run's limits that the plan of a shard has; None if the plan is not of a shard."""
    spec = plan.spec
    if spec.shard is None:
        return None
    return Shares(spec.experiment, spec.shard, spec.shard.sizes(spec.dataset.datapoints))


def check_shards(plan: Plan, results: Results, run_id: str) -> RunFolder | None:
    """Check that a run which starts or resumes is not already played without shards or in other shards.

    Return the folder of the run if all shards were merged already.

    Raises:
        RunDirectoryError: it is, or the folder has the journal of another part.
    """
    run = results.run(split_part(run_id)[0])
    parts, shard = run.started_parts(), plan.shard
    has_started = run.manifest_path.is_file()
    if shard is None:
        if parts and not has_started:
            raise RunDirectoryError(
                f"run {run.run_id} is played in {describe_shards(parts)}; {_resume_advice(run, parts[0][0])}"
            )
    elif has_started:
        merged = _merged_from(run)
        if merged == shard.of and _is_complete(run, plan):
            return run
        if merged not in (None, shard.of):
            raise RunDirectoryError(
                f"run {run.run_id} was played in {merged} shards, not in {shard.of}, and they were merged: resume it "
                f"without --shard, or add --run-id NAME to play a new run in {shard.of} shards"
            )
        raise RunDirectoryError(
            f"run {run.run_id} was started without --shard, or was merged and has become longer; resume it "
            "without --shard, or add --run-id NAME to play a new run in shards"
        )
    elif other_parts := [part for part in parts if part[0].of != shard.of]:
        raise RunDirectoryError(
            f"run {run.run_id} is played in {describe_shards(other_parts)}, not in {shard.of}; "
            f"{_resume_advice(run, other_parts[0][0])}"
        )
    _check_journal(results.run(run_id), shard)
    return None


def _merged_from(run: RunFolder) -> int | None:
    """Return how many shards a run was merged from; None if one process played it or the number is unknown.

    Raises:
        RunError: the record of the merge is damaged.
    """
    path = run.parts / MERGED
    if not path.is_file():
        return None
    try:
        return Shard.parse(read_json(path)["parts"][0]["shard"]).of
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise RunError(f"{path} is damaged: it names no shard; delete it and resume the run without --shard") from error


def _is_complete(run: RunFolder, plan: Plan) -> bool:
    """Return whether a finished run already has everything that a plan would play."""
    manifest = run.manifest()
    return manifest.status in PLAYED and manifest.identity == plan.identity and is_unchanged(run, manifest, plan)


def _check_journal(folder: RunFolder, shard: Shard | None) -> None:
    """Check that an existing journal belongs to this part of the run, by its first record."""
    first = first_record(folder.journal)
    recorded = None if first is None else first.get(SHARD)
    if first is not None and recorded != (None if shard is None else list(shard.pair)):
        actual = "the whole run" if recorded is None else f"shard {'/'.join(map(str, recorded))}"
        expected = "the whole run" if shard is None else f"shard {shard}"
        raise RunDirectoryError(
            f"{folder.journal} is the journal of {actual}, not of {expected}; restore the file that belongs here, or "
            "move this one away"
        )


def describe_shards(parts: Sequence[tuple[Shard, RunFolder]]) -> str:
    """Return words for the number of shards of a run and for the started shards."""
    started = ", ".join(str(shard) for shard, _ in parts[:8])
    return f"{parts[0][0].of} shards (started: {started}{', ...' if len(parts) > 8 else ''})"


def _resume_advice(run: RunFolder, shard: Shard) -> str:
    return (
        f"resume it with --shard K/{shard.of}, merge the shards with nip-run merge {run.run_id}, or add --run-id "
        "NAME to play a new run"
    )
