"""Checks that all processes split a run into the same shards, and that each part has only its own records.

A shard is the part of a run's datapoints that one process plays: shard `number` of `of` shards. A part is the folder of
one shard. Commands check the option `--shard`, and `runner.runs.session.run` checks the folder before it plays games.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from runner.base.errors import RunDirectoryError, RunError, UsageError
from runner.base.storage.atomic_files import read_json
from runner.base.storage.log_lines import SHARD, first_record
from runner.results.folder import RunFolder, split_part
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED
from runner.results.spec_changes import has_same_spec
from runner.rollouts.plan import Plan
from runner.rollouts.run_plan import RunPlan
from runner.rollouts.shard_budget import Shares, find_shard_problems
from runner.spec.datasets.shards import Shard

P = TypeVar("P", bound=RunPlan)

MERGED = "merged.json"
"""The file in a run's `parts` folder that lists the merged shards."""


def parse_shard(text: str, *, again: bool = False, replay: object = None, set_model: object = None) -> Shard:
    """Parse the `--shard` option, and check that it is not combined with conflicting options.

    Raises:
        UsageError: the shard is invalid, or an option conflicts. The notes of the error list further problems.
    """
    problems = []
    if again:
        problems.append(
            "--shard: --again chooses the next free run id, which may differ between processes; set it with "
            "--run-id NAME instead"
        )
    if replay:
        problems.append("--shard: a replay calls no models and takes seconds; omit --shard to replay the full run")
    if set_model:
        problems.append("--shard: --set-model is for training runs, which have no shards; omit --shard or --set-model")
    try:
        shard = Shard.parse(text)
    except ValueError as error:
        problems.append(f"--shard {error}")
    if problems:
        raise UsageError(problems[0]).with_notes(problems[1:])
    return shard


def plan_of_shard(plan: P, shard: Shard) -> P:
    """Return the plan of one shard of a run.

    Raises:
        UsageError: the run cannot be played in these shards. The notes of the error list further reasons.
    """
    spec = plan.spec
    problems = [
        f"--shard {shard}: {reason}" for reason in find_shard_problems(spec.experiment, spec.dataset.datapoints, shard)
    ]
    if problems:
        raise UsageError(problems[0]).with_notes(problems[1:])
    return plan.with_spec(replace(spec, shard=shard))


def shares_of(plan: Plan) -> Shares | None:
    """Return a shard's share of each limit of its run; None if the plan is for the whole run."""
    spec = plan.spec
    if spec.shard is None:
        return None
    return Shares(spec.experiment, spec.shard, spec.shard.sizes(spec.dataset.datapoints))


def check_shards(plan: Plan, results: Results, run_id: str) -> RunFolder | None:
    """Check that an existing run in the results folder is split into the same shards as the plan.

    Return the run's folder if all its shards were already merged; otherwise None.

    Raises:
        RunDirectoryError: the run has other shards or none, its shards have another spec, or the folder has the journal
            of another part.
    """
    run = results.run(split_part(run_id)[0])
    shard = plan.shard
    if not run.manifest_path.is_file():
        parts = run.started_parts()
        other_shards = [other for other, _ in parts if shard is None or other.of != shard.of]
        if other_shards:
            conflict = "" if shard is None else f", not into {shard.of}"
            raise RunDirectoryError(
                f"run {run.run_id} is split into {describe_shards(other_shards)}{conflict}; resume a shard with "
                f"--shard K/{other_shards[0].of}, merge the shards with nip-run merge {run.run_id}, or add --run-id "
                "NAME to play a new run"
            )
        intact_part = next((part for other, part in parts if other != shard and part.damage() is None), None)
        if intact_part is not None:
            results.manifest_of(plan, intact_part.run_id)  # raises if this shard has another spec
    elif shard is not None:
        _check_merged(run, plan, shard)
        return run
    _check_journal(results.run(run_id), shard)
    return None


def _check_merged(run: RunFolder, plan: Plan, shard: Shard) -> None:
    """Check that a run that has a manifest was merged from all shards of the plan.

    Raises:
        RunDirectoryError: the run has other games, or was played in other shards or without shards.
    """
    merged_count = _merged_shard_count(run)
    if merged_count == shard.of and _is_complete(run, plan):
        return
    if merged_count not in (None, shard.of):
        raise RunDirectoryError(
            f"run {run.run_id} was played in {merged_count} shards, not in {shard.of}, and is already merged: omit "
            f"--shard to resume it, or add --run-id NAME to play a new run in {shard.of} shards"
        )
    raise RunDirectoryError(
        f"run {run.run_id} was started without --shard, or was extended after its merge; omit --shard to resume "
        "it, or add --run-id NAME to play a new run in shards"
    )


def _merged_shard_count(run: RunFolder) -> int | None:
    """Return the number of shards that a run was merged from; None if the run has no record of a merge.

    Raises:
        RunError: the record of the merge is damaged.
    """
    path = run.parts_folder / MERGED
    if not path.is_file():
        return None
    try:
        return Shard.parse(read_json(path)["parts"][0]["shard"]).of
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        raise RunError(
            f"{path} is damaged: it lists no shard; delete this file, and resume the run without --shard"
        ) from error


def _is_complete(run: RunFolder, plan: Plan) -> bool:
    """Return whether a run is finished and has all games of a plan."""
    manifest = run.manifest()
    return manifest.status in PLAYED and manifest.identity == plan.identity and has_same_spec(run, manifest, plan)


def _check_journal(folder: RunFolder, shard: Shard | None) -> None:
    """Check that an existing journal belongs to this shard or, for None, to the whole run."""
    header = first_record(folder.journal)
    recorded_shard = None if header is None else header.get(SHARD)
    if header is not None and recorded_shard != (None if shard is None else list(shard.pair)):
        actual = "the whole run" if recorded_shard is None else f"shard {'/'.join(map(str, recorded_shard))}"
        expected = "the whole run" if shard is None else f"shard {shard}"
        raise RunDirectoryError(
            f"{folder.journal} is the journal of {actual}, not of {expected}; restore the journal of {expected} from a "
            f"backup, or move {folder.path} away to start again"
        )


def describe_shards(started: Sequence[Shard]) -> str:
    """Describe the shards of a run, such as "3 shards (started: 1/3, 2/3)"."""
    listed = ", ".join(map(str, started[:8]))
    return f"{started[0].of} shards (started: {listed}{', ...' if len(started) > 8 else ''})"
