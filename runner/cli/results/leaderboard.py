"""Rank the runs of each task, or rebuild the leaderboard file.

Examples:
  nip-run leaderboard
  nip-run leaderboard BENCHMARK --json
  nip-run leaderboard --rebuild
  nip-run leaderboard --from DIR
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.cli.arguments import OPTIONAL_REGISTRY_HELP, add_registry_option
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.results.leaderboard.results_folder import Results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="only this benchmark")
    parser.add_argument("--rebuild", action="store_true", help="rebuild the file from the run folders")
    add_registry_option(parser, f"rank the published runs of this registry instead: {OPTIONAL_REGISTRY_HELP}")


def execute(args: argparse.Namespace) -> int:
    from runner.cli.terminal.leaderboard import print_leaderboard
    from runner.results.leaderboard.local_board import local_rows, missing_board_hint, with_stop_reasons

    if args.registry is not None:
        if args.rebuild:
            raise UsageError("--rebuild works only with the local leaderboard; omit --rebuild, or omit --from")
        from runner.cli.results.published_board import show_published

        return show_published(args.registry, args.benchmark, as_json=args.json)
    results: Results = args.results
    if args.rebuild:
        return _rebuild(results, as_json=args.json)
    rows = local_rows(results, args.benchmark)
    if args.json:
        print_json([row.to_json() for row in rows])
        return ExitCode.DONE
    if not rows:
        benchmark = f" for {args.benchmark!r}" if args.benchmark else ""
        say(f"no rows in {results.path}{benchmark}{missing_board_hint(results)}")
        return ExitCode.DONE
    rows = with_stop_reasons(rows, results)
    print_leaderboard(rows)
    for row in rows:
        if row.shared_note is not None:
            note(f"note: {row.run_id}: {row.shared_note}")
    return ExitCode.DONE


def _rebuild(results: Results, *, as_json: bool) -> int:
    damaged = list(results.damaged())
    runs = results.board.rebuild(on_damage=lambda problem: damaged.append(f"{problem}. The leaderboard leaves it out"))
    for problem in damaged:
        note(problem)
    if as_json:
        print_json({"runs": runs})
    else:
        say(f"{results.board.path} has {len(runs)} runs")
    return ExitCode.FAILED if damaged else ExitCode.DONE
