"""Merge the shards of a run into one run.

Examples:
  nip-run merge RUN
  nip-run merge RUN copied/3-of-8
  nip-run merge copied/1-of-2 copied/2-of-2
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import MergeError, RunError, UsageError
from runner.base.exit_codes import ExitCode
from runner.cli.startup import load_scipy_with_one_thread
from runner.cli.terminal.output import note, print_json

if TYPE_CHECKING:
    from runner.results.folder import RunFolder
    from runner.results.leaderboard.results_folder import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN|PART",
        help="run ids, run folders, or folders of shards copied from other machines",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.cli.terminal.run_result import as_json, show_result
    from runner.runs.shards.merge import merge

    results: Results = args.results
    shards_of_runs = runs_to_merge(args.runs, results)
    load_scipy_with_one_thread()
    failures: list[MergeError] = []
    merged = []
    for run_id, parts in shards_of_runs.items():
        try:
            result = merge(run_id, results, parts)
        except MergeError as error:
            if len(shards_of_runs) == 1:
                raise
            failures.append(error)
            continue
        merged.append(result)
        if result.was_finished:
            note(f"run {run_id} was merged already; nothing was changed")
        if not args.json:
            show_result(result, results, run_id, quiet=True, verbose=args.verbose > 0)
            for line in () if args.quiet else result.notes:
                note(f"note: {line}")
    if args.json:
        print_json([as_json(result) for result in merged])
    note(*(line for error in failures for line in error.lines()))
    return ExitCode.FAILED if failures else ExitCode.DONE


def runs_to_merge(arguments: Sequence[str], results: Results) -> dict[str, list[RunFolder]]:
    """Return the runs that the arguments name, each with the shard folders that are among the arguments.

    A shard is added to the run that its manifest names. If that run is not among the arguments, the shard is added to
    the first one, and the merge reports the mistake.

    Raises:
        UsageError: an argument names neither a run nor a shard.
    """
    from runner.results.folder import SHARDS, RunFolder

    runs: dict[str, list[RunFolder]] = {}
    shards: list[tuple[str, RunFolder]] = []
    run_arguments, problems = [], []
    for argument in arguments:
        path = Path(argument)
        if (path / "manifest.json").is_file() and not _is_run(path, results):
            shards.append((_run_id_of_shard(RunFolder(path)), RunFolder(path)))
        else:
            run_arguments.append(argument)
    shard_run_ids = [*dict.fromkeys(run_id for run_id, _ in shards if run_id)]
    for argument in run_arguments:
        path = Path(argument)
        if (path / SHARDS).is_dir() and _is_run(path, results):
            runs.setdefault(path.resolve().name, [])
        elif (sharded_run := _find_sharded_run(argument, results, shard_run_ids)) is not None:
            runs.setdefault(sharded_run, [])
        else:
            problems.append(
                f"{argument!r}: no run of this name in {results.path} was played in shards, and "
                f"{_describe_shards(shards, shard_run_ids)}; give a run id, or folders of shards"
            )
    if problems:
        raise UsageError(problems[0]).with_notes(problems[1:])
    for run_id, folder in shards:
        merged_run = run_id if run_id in runs else next(iter([*runs, *shard_run_ids]), folder.path.name)
        runs.setdefault(merged_run, []).append(folder)
    return runs


def _run_id_of_shard(shard: RunFolder) -> str:
    """Return the run id in a shard's manifest; an empty string if the manifest is damaged, which the merge reports."""
    from runner.results.folder import split_part
    from runner.spec.run_names import RUN_ID_PATTERN

    try:
        run_id = split_part(shard.manifest().run_id)[0]
    except RunError:
        return ""
    return run_id if re.fullmatch(RUN_ID_PATTERN, run_id) else ""


def _describe_shards(shards: Sequence[tuple[str, RunFolder]], run_ids: Sequence[str]) -> str:
    """Return the end of an error message, which names the runs that the given shards belong to."""
    if run_ids:
        return f"the given shards belong to {', '.join(run_ids)}"
    if shards:
        return f"these shards cannot be read: {', '.join(str(folder.path) for _, folder in shards)}"
    return "no shard folder was given"


def _is_run(path: Path, results: Results) -> bool:
    """Return whether a folder is in the folder of all runs. A shard is in a subfolder, or outside."""
    return results.run(path.resolve().name).path.resolve() == path.resolve()


def _find_sharded_run(argument: str, results: Results, shard_run_ids: Sequence[str]) -> str | None:
    """Return the id of the run that an argument names, or of the only run whose id starts with the argument."""
    if not argument:
        return None
    local_ids = [folder.run_id for folder in results.sharded_runs(argument)]
    run_ids = {*local_ids, *(run_id for run_id in shard_run_ids if run_id.startswith(argument))}
    if argument in run_ids or ("/" not in argument and results.run(argument).manifest_path.is_file()):
        return argument
    return run_ids.pop() if len(run_ids) == 1 else None
