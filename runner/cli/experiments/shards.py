"""The `--shard` option: restrict points to a shard, describe its limits, and merge when the last shard is done."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import MergeError, RunDirectoryError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.package_data import find_file, is_file, is_folder
from runner.base.text import counted
from runner.cli.terminal.output import note
from runner.models.api_keys import allowed_commands
from runner.results.default_folder import results_arguments
from runner.results.folder import RunFolder, split_part
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Status
from runner.rollouts.plan import Plan
from runner.runs.execution.shard_consistency import describe_shards, parse_shard, plan_of_shard, shares_of
from runner.spec.datasets.shards import Shard

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.runs.finished.result import FinishedRun

MERGE_WAIT_SECONDS = 30.0
"""Seconds that the last shard waits for another process that reads or merges the run."""


def restrict_to_shard(points: Sequence[SpecPoint], shard_text: str | None) -> list[SpecPoint]:
    """Return the points restricted to a shard such as "3/8". If `shard_text` is None, they are unchanged.

    Raises:
        UsageError: the shard is invalid, or some points cannot be played in shards; lists all reasons.
    """
    if shard_text is None:
        return list(points)
    shard = parse_shard(shard_text)
    restricted: list[SpecPoint] = []
    problems: dict[str, None] = {}
    for point in points:
        try:
            restricted.append(replace(point, plan=plan_of_shard(point.plan, shard)))
        except UsageError as error:
            problems.update(dict.fromkeys(f"{point.path}: {line}" for line in error.lines()))
    if problems:
        first, *notes = problems
        raise UsageError(first).with_notes(notes)
    return restricted


def resolve_shard_folders(names: Sequence[str], results: Results, shard_text: str | None) -> list[str]:
    """Return the arguments, with each run that is played in shards replaced by the folder of the shard to resume.

    Raises:
        UsageError: the shard of such a run has not started; lists all such runs.
    """
    shard = None if shard_text is None else parse_shard(shard_text)
    problems: dict[str, None] = {}

    def resolve(name: str) -> str:
        if not name or "=" in name:
            return name
        for run in (RunFolder(Path(name)), results.run(name)):
            if shard is not None and is_file(run.part(shard).manifest_path):
                return str(run.part(shard).path)
            if (shard is not None or not is_file(run.manifest_path)) and not _is_spec(name):
                problems.update(dict.fromkeys(_explain_missing_shard(run, shard)))
        return name

    resolved = [resolve(name) for name in names]
    if problems:
        first, *notes = problems
        raise UsageError(first).with_notes(notes)
    return resolved


def _is_spec(name: str) -> bool:
    path = find_file(name, Path())
    return path is not None and is_file(path)


def _explain_missing_shard(run: RunFolder, shard: Shard | None) -> Iterator[str]:
    """Yield a message if a run is played in shards, and so cannot be resumed by its name alone."""
    shards = [part_shard for part_shard, _ in run.started_parts()] if is_folder(run.parts_folder) else []
    if not shards:
        return
    run_id = run.path.resolve().name
    first, state = shards[0], f"run {run_id} is split into {describe_shards(shards)}"
    resume = f"to resume a started shard: nip-run {run_id} --shard {first}"
    if shard is None:
        start = f"to start one: nip-run SPEC --run-id {run_id} --shard K/{first.of}"
        yield f"{state}; {resume}; {start}; to merge them: nip-run merge {run_id}"
    elif first.of != shard.of:
        yield f"--shard {shard}: {state}, not into {shard.of}; {resume}"
    else:
        start = f"to start this one: nip-run SPEC --run-id {run_id} --shard {shard}"
        yield f"--shard {shard}: {state}; {resume}; {start}"


def check_shard(points: Sequence[SpecPoint], shard_text: str | None) -> None:
    """Check that `--shard` names the shard of each saved spec.

    Raises:
        UsageError: a saved spec is that of another shard or of a full run.
    """
    if shard_text is None:
        return
    for point in points:
        shard = point.spec.shard
        if shard != Shard.parse(shard_text):
            owner = "run" if shard is None else f"shard {shard} of run"
            raise UsageError(
                f"--shard {shard_text}: {point.path} is the saved spec of {owner} {split_part(point.plan.run_id)[0]}; "
                "omit --shard to resume it, or use the original spec to play another shard"
            )


def shard_lines(plan: Plan) -> Iterator[str]:
    """Yield lines about the shard's share of games, datapoints and limits, or nothing if the plan is not a shard."""
    shares = shares_of(plan)
    if shares is None:
        return
    full_plan = Plan(replace(plan.spec, shard=None))
    points = f"{counted(len(plan.points), 'datapoint')} of {len(full_plan.points):,}"
    yield f"shard {shares.shard}: {plan.size:,} of {full_plan.size:,} games, {points}"
    limits = [f"{key} {share:g} of {limit:g}" for key, limit, share in shares.rows() if share is not None]
    yield f"limits of this shard: {', '.join(limits)}"


def shard_as_json(plan: Plan) -> dict[str, object] | None:
    """Return the shard's share of its run as JSON data; None if the plan is not a shard."""
    shares = shares_of(plan)
    if shares is None:
        return None
    rows = list(shares.rows())
    return {
        "number": shares.shard.number,
        "of": shares.shard.of,
        "rollouts": plan.size,
        "datapoints": len(plan.points),
        "share": {key: share for key, _, share in rows},
        "whole": {key: limit for key, limit, _ in rows},
    }


def drop_merged_shards(results: Sequence[FinishedRun], merged: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the results without incomplete shards of runs that were merged.

    A run can be merged although a shard is incomplete, if all shards together lost no more games than allowed.
    """
    merged_ids = {result.folder.run_id for result in merged}
    return [
        result
        for result in results
        if result.manifest.status == Status.DONE or split_part(result.folder.run_id)[0] not in merged_ids
    ]


class ShardMerger:
    """Merges each run whose last shard this command has finished."""

    def __init__(self, results: Results, args: argparse.Namespace, printed: set[str]) -> None:
        self._results, self._args, self._printed = results, args, printed
        self.code: ExitCode | None = None
        """The exit code of the command if a run could not be merged."""

    def merge_finished(self, done: Sequence[FinishedRun]) -> list[FinishedRun]:
        """Merge each run whose shards have all finished, and return the merged runs."""
        merged_runs = []
        for result in done:
            shard = result.manifest.shard
            if shard is not None and result.manifest.status in PLAYED:
                merged = self._merge_if_last(split_part(result.folder.run_id)[0], shard)
                merged_runs.extend([] if merged is None else [merged])
        return merged_runs

    def _merge_if_last(self, run_id: str, shard: Shard) -> FinishedRun | None:
        from runner.cli.terminal.run_result import show_result
        from runner.runs.shards.merge import count_finished_shards, merge

        run = self._results.run(run_id)
        command = shlex.join(["nip-run", "merge", run_id, *results_arguments(self._results.path)])
        is_last, count = count_finished_shards(run, shard.of)
        if not is_last and not run.manifest_path.is_file():
            if not self._args.quiet:
                progress = f"{count} of {shard.of} shards of {run_id} are done"
                note(f"{progress}; the last one to finish here merges them; to merge by hand: {command}")
            return None
        allowed = allowed_commands(self._args.allow_command)
        try:
            result = merge(run_id, self._results, wait_seconds=MERGE_WAIT_SECONDS, allowed=allowed)
        except RunDirectoryError as error:
            note(f"all shards of {run_id} are done, but cannot be merged now: {error}. To merge them later: {command}")
            return None
        except MergeError as error:
            self.code = ExitCode.FAILED
            note(*error.lines(), f"After fixing this, run: {command}")
            return None
        if not self._args.json:
            merged = replace(result, was_finished=False)  # also if another process has merged the shards
            show_result(merged, self._results, run_id, quiet=self._args.quiet, printed=self._printed)
        return result
