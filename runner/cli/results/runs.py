"""List all runs.

Examples:
  nip-run runs
  nip-run runs --status interrupted
  nip-run runs --json
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.terminal.output import format_time, note, print_json, print_table, say
from runner.results.sweep_points import format_point

if TYPE_CHECKING:
    from runner.results.leaderboard.results_folder import Results
    from runner.results.manifest import Manifest


_COLUMNS = ("run", "status", "rollouts", "lost", "started", "cost", "benchmark", "protocol")
_DROPPED_IF_NARROW = ("protocol", "benchmark", "cost", "started", "lost")
"""Columns that a narrow terminal leaves out, in this order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--status",
        choices=("running", "done", "incomplete", "failed", "interrupted"),
        help="only runs with this status",
    )


def execute(args: argparse.Namespace) -> int:
    results: Results = args.results
    manifests = [manifest for _, manifest in results.runs_with_manifests()]
    note(*results.damaged())
    if not args.quiet:
        _note_shards(results)
    selected = [manifest for manifest in manifests if args.status in (None, manifest.status)]
    selected.sort(key=lambda manifest: (manifest.started_at, manifest.run_id), reverse=True)
    if args.json:
        print_json([manifest.to_json() for manifest in selected])
        return ExitCode.DONE
    if not selected:
        status = "" if args.status is None else f" with status {args.status}"
        hint = "" if manifests else "; start with: nip-run specs/quickstart.yaml"
        say(f"no runs in {results.path}{status}{hint}")
        return ExitCode.DONE
    listed = selected if args.verbose else _fold_parts(selected)
    folded = [manifest for manifest in selected if manifest not in listed]
    part_counts = Counter(manifest.parent_run_id for manifest in folded)
    has_points = any(manifest.point for manifest in listed)
    rows = [
        _manifest_cells(manifest, part_counts[manifest.run_id], _count_rollouts(manifest, manifests))
        + ((format_point(manifest.point),) if has_points else ())
        for manifest in listed
    ]
    print_table((*_COLUMNS, "point") if has_points else _COLUMNS, rows, drop=_DROPPED_IF_NARROW)
    if folded and not args.quiet:
        note("finished parts and analyses of other runs are not listed; add -v to list them")
    return ExitCode.DONE


def _note_shards(results: Results) -> None:
    """Print a note on each run that is played in shards and not merged yet."""
    from runner.results.manifest import PLAYED

    for folder in results.sharded_runs():
        shards = folder.started_parts()
        if shards and not folder.manifest_path.is_file():
            done = sum(part.manifest().status in PLAYED for _, part in shards if part.damage() is None)
            total = shards[0][0].of
            progress = f"{folder.run_id} is played in shards: {done} of {total} are done"
            note(f"{progress}; to merge them: nip-run merge {folder.run_id}")


def _fold_parts(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Return the runs without the finished parts and analyses of those runs that are in the list themselves."""
    from runner.results.manifest import Status

    run_ids = {run.run_id for run in manifests}
    return [
        run for run in manifests
        if run.status != Status.DONE or (run.parent_run_id or run.analysis_of) not in run_ids
    ]  # fmt: skip


def _count_rollouts(manifest: Manifest, manifests: Sequence[Manifest]) -> int | None:
    """Return the number of rollouts of a run, or of all parts of a training run."""
    if not manifest.has_parts or manifest.rollouts is not None:
        return manifest.rollouts
    return sum(part.rollouts or 0 for part in manifests if part.parent_run_id == manifest.run_id)


def _manifest_cells(manifest: Manifest, parts: int, rollouts: int | None) -> tuple[object, ...]:
    """Return the cells of `_COLUMNS`. `parts` is the number of parts of a training run that are not listed."""
    return (
        manifest.run_id, manifest.status, counted(parts, "part") if parts else rollouts, manifest.transport_failed,
        format_time(manifest.started_at), manifest.own_cost_usd,
        manifest.benchmark if manifest.analysis_of is None else f"analyzes {manifest.analysis_of}", manifest.protocol,
    )  # fmt: skip
