"""Show the points of a sweep as one table with rank ranges.

Examples:
  nip-run sweep spec.yaml
  nip-run sweep spec.yaml --metric recall
  nip-run sweep spec.yaml --json
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from runner.base.exit_codes import ExitCode
from runner.base.text import decimal, with_interval
from runner.cli.arguments import add_spec_arguments
from runner.cli.terminal.output import format_range, note, print_json, print_table, say, say_lines

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.results.leaderboard.results_folder import Results
    from runner.results.leaderboard.sweep_table import SweepPoint, SweepRow, SweepValue


_DROPPED_IF_NARROW = ("cost", "between seeds", "n")
"""Columns that a narrow terminal leaves out, in this order."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="METRIC",
        help="add a column for this metric, AGENT.METRIC for one agent, or analysis:NAME for the answers of `nip-run "
        "analyze`; repeatable",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.analysis.rate_columns import sweep_with_analyses
    from runner.cli.specs import keep_chat_formats, load_points
    from runner.results.metric_definitions import RANKING_METRIC
    from runner.runs.finished.selection import OWN_RUN
    from runner.training.dispatch import choose_run_id

    results: Results = args.results
    points = keep_chat_formats(load_points(args.spec_arguments, results.path_of, quiet=args.quiet), results)
    run_ids = [choose_run_id(point.plan, results, OWN_RUN) for point in points]
    metrics = list(dict.fromkeys((RANKING_METRIC, *args.metric)))
    rows = sweep_with_analyses(sweep_points_of(points, run_ids), results, metrics)
    if args.json:
        print_json([row.to_json() for row in rows])
    else:
        show_sweep(rows, metrics)
    return ExitCode.DONE


def sweep_points_of(points: Sequence[SpecPoint], run_ids: Sequence[str]) -> list[SweepPoint]:
    """Return the points of a command, each with the id of its run."""
    from runner.results.leaderboard.sweep_table import SweepPoint

    specs = [point.spec for point in points]
    return [
        SweepPoint(spec.experiment.name, run_id, spec.point, spec.experiment.seed)
        for spec, run_id in zip(specs, run_ids, strict=True)
    ]


def show_sweep(rows: Sequence[SweepRow], metrics: Sequence[str]) -> None:
    """Print a table for each task, with rows in the order of the sweep and reasons for missing ranks."""
    tasks = [row.task for row in rows]
    by_task = sorted(rows, key=lambda row: tasks.index(row.task))
    tables = [list(table) for _, table in groupby(by_task, key=lambda row: row.task)]
    for number, table in enumerate(tables):
        if number:
            say()
        task = table[0].task
        title = "not played yet" if task is None else f"task {task[:8]}"
        _show_task(table, metrics, None if len(tables) == 1 else title)


def _show_task(rows: Sequence[SweepRow], metrics: Sequence[str], title: str | None) -> None:
    """Print the rows of one task as a table, and explain its marks and columns."""
    from runner.analysis.rate_columns import rate_notes
    from runner.results.comparison.analysis_metrics import is_analysis_metric

    swept_keys = list(dict.fromkeys(key for row in rows for key in row.point))
    several_names, several_seeds = len({row.name for row in rows}) > 1, any(len(row.seeds) > 1 for row in rows)
    columns = [
        "rank",
        *(["name"] if several_names or not swept_keys else []),
        *swept_keys,
        *(f"{metric} [95%]" for metric in metrics),
        "n",
        *(["seeds", "between seeds"] if several_seeds else []),
        "cost",
        *(["reason"] if any(row.reason for row in rows) else []),
    ]
    cells = [_row_cells(row, metrics) for row in rows]
    print_table(columns, [[row.get(name, "") for name in columns] for row in cells], title, drop=_DROPPED_IF_NARROW)
    for metric in metrics:
        values = [row.metrics[metric] for row in rows]
        if is_analysis_metric(metric):
            say_lines(rate_notes(metric, values))
            continue
        for reason in dict.fromkeys(value.reason for value in values if value.reason and value.value is not None):
            say(f"{metric}: {reason}")
    if any(row.stopped for row in rows):
        several = any(row.stopped and len(row.seeds) > 1 for row in rows)
        ranking_note = ", which does not exist for several seeds together" if several else ""
        note(f"(stopped): the run stopped early under `until`, so it ranks by its confidence sequence{ranking_note}")
    from runner.results.leaderboard.model import describe_ranks

    ranked = sum(row.rank is not None for row in rows)
    if ranked > 1:
        note(describe_ranks(ranked))
    if any(value.between is not None for row in rows for value in row.metrics.values()):
        note(
            "between seeds: standard deviation of the seeds' means; in brackets the value expected from sampling alone"
        )


def _row_cells(row: SweepRow, metrics: Sequence[str]) -> dict[str, Any]:
    """Return the cells of a row by column."""
    first = row.metrics[metrics[0]]
    return {
        **row.point,
        "rank": "-" if row.rank is None else format_range(*row.rank),
        "name": row.name,
        **{f"{name} [95%]": with_interval(m.value, m.ci_low, m.ci_high) for name, m in row.metrics.items()},
        "n": f"{first.n} (stopped)" if row.stopped else first.n,
        "seeds": f"{len(row.seeds) - len(row.missing)} of {len(row.seeds)}" if row.missing else len(row.seeds),
        "between seeds": _format_spread(first),
        "cost": row.cost_usd,
        "reason": row.reason or "",
    }


def _format_spread(value: SweepValue) -> str:
    if value.between is None:
        return ""
    return decimal(value.between) + ("" if value.within is None else f" ({decimal(value.within)})")
