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
from runner.cli.terminal.output import note, print_json, print_table, say, short_time
from runner.results.sweep_points import shown_point

if TYPE_CHECKING:
    from runner.results.leaderboard.results_folder import Results
    from runner.results.manifest import Manifest


_COLUMNS = ("run", "status", "rollouts", "lost", "started", "cost", "benchmark", "protocol")
_DROPPED = ("protocol", "benchmark", "cost", "started", "lost")
"""What a narrow terminal does without, the first of it first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--status",
        choices=("running", "done", "incomplete", "failed", "interrupted"),
        help="only runs with this status",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.results.leaderboard.results_folder import Results

    results = Results(args.results)
    manifests = [folder.manifest() for folder in results.runs()]
    for damage in results.damaged():
        note(damage)
    if not args.quiet:
        _note_shards(results)
    chosen = [m for m in manifests if args.status in (None, m.status)]
    chosen.sort(key=lambda m: (m.started_at, m.run_id), reverse=True)
    if args.json:
        print_json([m.to_json() for m in chosen])
        return ExitCode.DONE
    if not chosen:
        which = "" if args.status is None else f" with status {args.status}"
        start = "" if manifests else "; start with: nip-run specs/quickstart.yaml"
        say(f"no runs in {results.path}{which}{start}")
        return ExitCode.DONE
    shown = chosen if args.verbose else _folded(chosen)
    parts = Counter(m.parent_run_id for m in chosen if m not in shown)
    swept = any(m.point for m in shown)
    rows = [
        _row(m, parts[m.run_id], _rollouts(m, manifests)) + ((shown_point(m.point),) if swept else ()) for m in shown
    ]
    print_table((*_COLUMNS, "point") if swept else _COLUMNS, rows, drop=_DROPPED)
    if parts and not args.quiet:
        note("the finished parts of training runs are folded; -v lists them")
    return ExitCode.DONE


def _note_shards(results: Results) -> None:
    """Tell of the runs that are in parts, and not one run yet."""
    from runner.results.manifest import PLAYED

    for folder in results.in_shards():
        parts = folder.begun_parts()
        if parts and not folder.manifest_path.is_file():
            done = sum(part.manifest().status in PLAYED for _, part in parts if part.damage() is None)
            of = parts[0][0].of
            note(f"{folder.run_id} is played in shards: {done} of {of} are done; nip-run merge {folder.run_id}")


def _folded(manifests: Sequence[Manifest]) -> list[Manifest]:
    """Runs without the finished parts of those training runs that are among them."""
    from runner.results.manifest import Status

    there = {m.run_id for m in manifests}
    return [m for m in manifests if m.parent_run_id not in there or m.status != Status.DONE]


def _rollouts(m: Manifest, manifests: Sequence[Manifest]) -> int | None:
    """How many rollouts a run has; a training run those of its parts."""
    if not m.is_training_run or m.rollouts is not None:
        return m.rollouts
    return sum(part.rollouts or 0 for part in manifests if part.parent_run_id == m.run_id)


def _row(m: Manifest, parts: int, rollouts: int | None) -> tuple[object, ...]:
    many = counted(parts, "part") if parts else rollouts
    return (
        m.run_id, m.status, many, m.transport_failed, short_time(m.started_at), m.own_cost_usd, m.benchmark, m.protocol,
    )  # fmt: skip
