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
from runner.cli.arguments import add_specs
from runner.cli.terminal.output import note, print_json, print_table, say

if TYPE_CHECKING:
    from runner.cli.specs import SpecPoint
    from runner.results.leaderboard.sweep_table import SweepPoint, SweepRow, SweepValue


_DROPPED = ("cost", "between seeds", "n")
"""What a narrow terminal does without, the first of it first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_specs(parser)
    parser.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="METRIC",
        help="add a column for this metric, or AGENT.METRIC for one agent; repeatable",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.cli.specs import load_points, points_as_begun
    from runner.results.leaderboard.results_folder import Results
    from runner.results.leaderboard.sweep_table import sweep_rows
    from runner.results.metric_table import RANKING_METRIC
    from runner.runs.finished.selection import OWN_RUN
    from runner.training.dispatch import choose_run_id

    results = Results(args.results)
    points = points_as_begun(load_points(args.words, results.path_of, quiet=args.quiet), results)
    names = [choose_run_id(point.plan, results, OWN_RUN) for point in points]
    metrics = list(dict.fromkeys((RANKING_METRIC, *args.metric)))
    rows = sweep_rows(points_of(points, names), results, metrics)
    if args.json:
        print_json([row.to_json() for row in rows])
    else:
        show_sweep(rows, metrics)
    return ExitCode.DONE


def points_of(points: Sequence[SpecPoint], names: Sequence[str]) -> list[SweepPoint]:
    """The points of a command, each with the id of its run."""
    from runner.results.leaderboard.sweep_table import SweepPoint

    return [
        SweepPoint(spec.experiment.name, name, spec.point, spec.experiment.seed)
        for point, name in zip(points, names, strict=True)
        for spec in (point.spec,)
    ]


def show_sweep(rows: Sequence[SweepRow], metrics: Sequence[str]) -> None:
    """A table for each task, its rows in the order of the sweep; what does not rank says why."""
    by_task = sorted(rows, key=lambda row: [one.task for one in rows].index(row.task))
    tables = [list(table) for _, table in groupby(by_task, key=lambda row: row.task)]
    for number, table in enumerate(tables):
        if number:
            say()
        _show(table, metrics, None if len(tables) == 1 else _title(table[0]))


def _title(row: SweepRow) -> str:
    return "not played yet" if row.task is None else f"task {row.task[:8]}"


def _show(rows: Sequence[SweepRow], metrics: Sequence[str], title: str | None) -> None:
    swept = list(dict.fromkeys(key for row in rows for key in row.point))
    several_names, several_seeds = len({row.name for row in rows}) > 1, any(len(row.seeds) > 1 for row in rows)
    columns = [
        "rank",
        *(["name"] if several_names or not swept else []),
        *swept,
        *(f"{metric} [95%]" for metric in metrics),
        "n",
        *(["seeds", "between seeds"] if several_seeds else []),
        "cost",
        *(["reason"] if any(row.reason for row in rows) else []),
    ]
    print_table(columns, [[_cell(row, name, metrics) for name in columns] for row in rows], title, drop=_DROPPED)
    for metric in metrics:
        values = [row.metrics[metric] for row in rows]
        for reason in dict.fromkeys(one.reason for one in values if one.reason and one.value is not None):
            say(f"{metric}: {reason}")
    if any(row.stopped for row in rows):
        several = any(row.stopped and len(row.seeds) > 1 for row in rows)
        ranks = (
            "ranks by its confidence sequence, and several seeds have none together"
            if several
            else ("ranks by its confidence sequence")
        )
        note(f"(stopped): it was to stop once it was decided; it {ranks}")
    spread = [row for row in rows if any(value.between is not None for value in row.metrics.values())]
    if spread:
        note("between seeds: the standard deviation of their means, and in brackets what sampling alone would give")


def _cell(row: SweepRow, column: str, metrics: Sequence[str]) -> Any:
    """What a row has for a column of the table."""
    first = row.metrics[metrics[0]]
    match column:
        case "rank":
            return "-" if row.rank is None else _range(row.rank)
        case "name":
            return row.name
        case "n":
            return f"{first.n} (stopped)" if row.stopped else first.n
        case "seeds":
            return f"{len(row.seeds) - len(row.missing)} of {len(row.seeds)}" if row.missing else len(row.seeds)
        case "between seeds":
            return _spread(first)
        case "cost":
            return row.cost_usd
        case "reason":
            return row.reason or ""
        case _ if column.endswith(" [95%]"):
            value = row.metrics[column.removesuffix(" [95%]")]
            return with_interval(value.value, value.ci_low, value.ci_high)
        case _:
            return row.point.get(column, "")


def _range(rank: tuple[int, int]) -> str:
    first, last = rank
    return str(first) if first == last else f"{first}-{last}"


def _spread(value: SweepValue) -> str:
    if value.between is None:
        return ""
    return decimal(value.between) + ("" if value.within is None else f" ({decimal(value.within)})")
