"""Rank the runs of each task, or rebuild the leaderboard file.

Examples:
  nip-run leaderboard
  nip-run leaderboard BENCHMARK --json
  nip-run leaderboard --metric analysis:role_conformance
  nip-run leaderboard --rebuild
  nip-run leaderboard --from DIR
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import decimal
from runner.cli.arguments import OPTIONAL_REGISTRY_HELP, add_registry_option
from runner.cli.terminal.output import note, print_json, say, say_lines

if TYPE_CHECKING:
    from runner.results.leaderboard.results_folder import Results
    from runner.results.leaderboard.sweep_table import SweepValue


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("benchmark", nargs="?", metavar="BENCHMARK", help="only this benchmark")
    parser.add_argument("--rebuild", action="store_true", help="rebuild the file from the run folders")
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="analysis:NAME",
        help="add a column with the answers of `nip-run analyze`; repeatable",
    )
    add_registry_option(parser, f"rank the published runs of this registry instead: {OPTIONAL_REGISTRY_HELP}")


def execute(args: argparse.Namespace) -> int:
    from runner.cli.terminal.leaderboard import print_leaderboard
    from runner.results.leaderboard.local_board import local_rows, missing_board_hint, with_stop_reasons

    _check_metrics(args)
    if args.registry is not None:
        if args.rebuild:
            raise UsageError("--rebuild works only with the local leaderboard; omit --rebuild, or omit --from")
        from runner.cli.results.published_board import show_published

        return show_published(args.registry, args.benchmark, as_json=args.json)
    results: Results = args.results
    if args.rebuild:
        return _rebuild(results, as_json=args.json)
    rows = local_rows(results, args.benchmark)
    rates = _load_rates([row.run_id for row in rows], args.metric, results)
    if args.json:
        columns = [{name: vars(values[row.run_id]) for name, values in rates.items()} for row in rows]
        print_json([{**row.to_json(), **more} for row, more in zip(rows, columns, strict=True)])
        return ExitCode.DONE
    if not rows:
        benchmark = f" for {args.benchmark!r}" if args.benchmark else ""
        say(f"no rows in {results.path}{benchmark}{missing_board_hint(results)}")
        return ExitCode.DONE
    rows = with_stop_reasons(rows, results)
    print_leaderboard(
        rows, [*rates], lambda row: {name: decimal(values[row.run_id].value) for name, values in rates.items()}
    )
    _print_rate_notes(rates)
    for row in rows:
        if row.shared_note is not None:
            note(f"note: {row.run_id}: {row.shared_note}")
    return ExitCode.DONE


def _check_metrics(args: argparse.Namespace) -> None:
    """Check that `--metric` names analyses of local runs.

    Raises:
        UsageError: it does not.
    """
    if not args.metric:
        return
    from runner.results.comparison.analysis_metrics import is_analysis_metric

    others = [name for name in args.metric if not is_analysis_metric(name)]
    if others:
        raise UsageError(
            f"--metric {others[0]}: only analysis:NAME can be a column; for other metrics use nip-run sql or compare"
        )
    if args.registry is not None:
        raise UsageError("--metric works only with the local leaderboard; omit --metric, or omit --from")


def _load_rates(run_ids: Sequence[str], names: Sequence[str], results: Results) -> dict[str, dict[str, SweepValue]]:
    """Return the rates of analyses by name and run."""
    if not names:
        return {}
    from runner.analysis.rate_columns import rate_of  # not at the top, since it imports NumPy

    return {name: {run_id: rate_of(name, [results.run(run_id)]) for run_id in run_ids} for name in names}


def _print_rate_notes(rates: Mapping[str, Mapping[str, SweepValue]]) -> None:
    for name, values in rates.items():
        from runner.analysis.rate_columns import rate_notes

        say_lines(rate_notes(name, [*values.values()]))


def _rebuild(results: Results, *, as_json: bool) -> int:
    damaged = list(results.damaged())
    runs = results.board.rebuild(on_damage=lambda problem: damaged.append(f"{problem}. The leaderboard leaves it out"))
    note(*damaged)
    if as_json:
        print_json({"runs": runs})
    else:
        say(f"{results.board.path} has {len(runs)} runs")
    return ExitCode.FAILED if damaged else ExitCode.DONE
