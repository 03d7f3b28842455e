"""What the command line does of shards: points into their parts, what a part may use, and the merge by the last."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import MergeError, RunDirectoryError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.package_data import find_file, is_file, is_folder
from runner.base.text import counted
from runner.cli.arguments import results_option
from runner.cli.terminal.output import note
from runner.results.folder import RunFolder, split_part
from runner.results.leaderboard.results_folder import Results
from runner.results.manifest import PLAYED, Status
from runner.rollouts.plan import Plan
from runner.runs.execution.shard_consistency import describe_shards, in_shard, parse_shard, shares_of
from runner.runs.finished.result import FinishedRun
from runner.spec.datasets.shards import Shard

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint

MERGE_WAIT_SECONDS = 30.0
"""How long the last part waits for whoever looks at the run just then, or merges it."""


def in_shards(points: Sequence[SpecPoint], word: str | None) -> list[SpecPoint]:
    """The points of a command as their parts; with `word` None as they are.

    Raises:
        UsageError: it is no shard, or some of them cannot be played so; with all reasons.
    """
    if word is None:
        return list(points)
    shard = parse_shard(word)
    found: list[SpecPoint] = []
    wrong: dict[str, None] = {}
    for point in points:
        try:
            found.append(replace(point, plan=in_shard(point.plan, shard)))
        except UsageError as error:
            wrong.update(dict.fromkeys(f"{point.path}: {line}" for line in error.lines()))
    if wrong:
        first, *others = wrong
        raise UsageError(first).with_notes(others)
    return found


def with_parts(words: Sequence[str], results: Results, word: str | None) -> list[str]:
    """The words of a command, in which a run that is played in shards is its part's folder: the part goes on so.

    Raises:
        UsageError: a word names a run that is played in shards, and no part of it that has begun; with all such words.
    """
    shard = None if word is None else parse_shard(word)
    wrong: dict[str, None] = {}

    def folder(name: str) -> str:
        if not name or "=" in name:
            return name
        for run in (RunFolder(Path(name)), results.run(name)):
            if shard is not None and is_file(run.part(shard).manifest_path):
                return str(run.part(shard).path)
            if (shard is not None or not is_file(run.manifest_path)) and not _is_spec(name):
                wrong.update(dict.fromkeys(_not_begun(run, shard)))
        return name

    found = [folder(name) for name in words]
    if wrong:
        first, *others = wrong
        raise UsageError(first).with_notes(others)
    return found


def _is_spec(name: str) -> bool:
    found = find_file(name, Path())
    return found is not None and is_file(found)


def _not_begun(run: RunFolder, shard: Shard | None) -> Iterator[str]:
    """What is wrong with naming a run for a part that has not begun, or for all of them; nothing where it has none."""
    parts = run.begun_parts() if is_folder(run.parts) else []
    if not parts:
        return
    run_id = run.path.resolve().name
    first, said = parts[0][0], f"run {run_id} is played in {describe_shards(parts)}"
    by_name = f"by its name a part goes on that has begun (nip-run {run_id} --shard {first})"
    if shard is None:
        yield (
            f"{said}; {by_name}; any is begun by the spec (nip-run SPEC --run-id {run_id} --shard K/{first.of}), "
            f"and nip-run merge {run_id} makes one run of them"
        )
    elif first.of != shard.of:
        yield f"--shard {shard}: {said}, not in {shard.of}; {by_name}"
    else:
        by_spec = f"this one is begun by the spec (nip-run SPEC --run-id {run_id} --shard {shard})"
        yield f"--shard {shard}: {said}; {by_name}; {by_spec}"


def check_shard(points: Sequence[SpecPoint], word: str | None) -> None:
    """See that what is played is the shard that was asked for, where a spec is the one that was saved with a run.

    Raises:
        UsageError: it is another one.
    """
    if word is None:
        return
    for point in points:
        shard = point.spec.shard
        if shard != Shard.parse(word):
            what = "the whole run" if shard is None else f"shard {shard}"
            raise UsageError(
                f"--shard {word}: {point.path} was saved with {what} of {split_part(point.plan.run_id)[0]}, which goes "
                "on without --shard; other shards are played by the spec that began it"
            )


def shard_lines(plan: Plan) -> Iterator[str]:
    """What a part has of its run: games, and a share of each limit."""
    shares = shares_of(plan)
    if shares is None:
        return
    whole = Plan(replace(plan.spec, shard=None))
    points = f"{counted(len(plan.points), 'datapoint')} of {len(whole.points):,}"
    yield f"shard {shares.shard}: {plan.size:,} of {whole.size:,} games, {points}"
    said = [f"{key} {share:g} of {most:g}" for key, most, share in shares.rows() if share is not None]
    yield f"its share: {', '.join(said)}"


def shard_as_json(plan: Plan) -> dict[str, Any] | None:
    """The same for a machine; None of a whole run."""
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
        "whole": {key: most for key, most, _ in rows},
    }


def without_merged(done: Sequence[FinishedRun], merged: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Results without parts that lost games, where all shards together lost no more than is allowed."""
    whole = {result.folder.run_id for result in merged}
    return [
        result
        for result in done
        if result.manifest.status == Status.DONE or split_part(result.folder.run_id)[0] not in whole
    ]


class ShardMerges:
    """The merges of runs by whoever has ended their last part."""

    def __init__(self, results: Results, args: argparse.Namespace, told: set[str]) -> None:
        self._results, self._args, self._told = results, args, told
        self.code: ExitCode | None = None
        """What the command ends with, where a run could not be merged."""

    def of(self, done: Sequence[FinishedRun]) -> list[FinishedRun]:
        """The runs that were made of the parts among these, as all of theirs have ended."""
        found = []
        for result in done:
            shard = result.manifest.shard
            if shard is not None and result.manifest.status in PLAYED:
                merged = self._merged(split_part(result.folder.run_id)[0], shard)
                found.extend([] if merged is None else [merged])
        return found

    def _merged(self, run_id: str, shard: Shard) -> FinishedRun | None:
        # Here and not above: a run that is no part needs none of it.
        from runner.cli.terminal.run_result import show_result
        from runner.runs.shards.merge import count_finished_parts, merge

        whole = self._results.run(run_id)
        command = shlex.join(["nip-run", "merge", run_id, *results_option(self._args.results)])
        is_last, count = count_finished_parts(whole, shard.of)
        if not is_last and not whole.manifest_path.is_file():
            if not self._args.quiet:
                done = f"{count} of {shard.of} shards of {run_id} are done"
                note(f"{done}; the last that ends here merges them, or: {command}")
            return None
        try:
            result = merge(run_id, self._results, wait_seconds=MERGE_WAIT_SECONDS)
        except RunDirectoryError as error:
            note(f"all shards of {run_id} are done: {error}; if it is not merging them: {command}")
            return None
        except MergeError as error:
            self.code = ExitCode.FAILED
            for line in (*error.lines(), f"Once that is mended: {command}"):
                note(line)
            return None
        if not self._args.json:
            show_result(result, self._results, run_id, quiet=self._args.quiet, told=self._told)
        return result
