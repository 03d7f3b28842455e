"""Print a leaderboard as one table for each task, followed by the rows without a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.base.text import with_interval
from runner.cli.terminal.output import format_time, note, print_table, say
from runner.results.leaderboard.model import LeaderboardRow, describe_ranks, lists_of

_RANKED_COLUMNS = ("protocol", "models", "clusters", "cost", "finished")
"""Columns that only tables of ranked rows have."""
_DROPPED_IF_NARROW = ("cost", "finished", "clusters", "models", "protocol", "seed", "n")
"""Columns that a narrow terminal leaves out, in this order."""


ExtraCells = Callable[[Any], Mapping[str, Any]]
"""A function that returns the cells of a row by column name, for columns that are not fields of the row."""


def print_leaderboard(
    rows: Sequence[LeaderboardRow], extra_columns: Sequence[str] = (), extra_cells: ExtraCells = lambda _: {}
) -> None:
    """Print a table of ranked rows and a table of unranked rows for each task of each benchmark."""
    for index, task_rows in enumerate(lists_of(rows)):
        if index:
            say()
        ranked = [row for row in task_rows if row.rank is not None]
        unranked = [row for row in task_rows if row.rank is None]
        if ranked:
            _print_rows(
                ranked, extra_cells, _table_title(ranked[0]), first=("rank",), last=(*extra_columns, *_RANKED_COLUMNS)
            )
            if len(ranked) > 1:
                note(describe_ranks(len(ranked)))
        if unranked:
            title = "without a rank:" if ranked else f"{unranked[0].benchmark}, without a rank:"
            _print_rows(unranked, extra_cells, title, first=(), last=(*extra_columns, "reason"))


def _print_rows(
    rows: Sequence[LeaderboardRow], extra_cells: ExtraCells, title: str, *, first: Sequence[str], last: Sequence[str]
) -> None:
    """Print rows as a table. The columns `first` and `last` are left and right of the columns of every leaderboard."""
    point = ("point",) if any(row.point for row in rows) else ()
    stopped = ("stopped",) if any(row.stopped for row in rows) else ()
    columns = (*first, "run", "accuracy [95%]", "n", "lost", "undecided", "seed", *point, *stopped, *last)
    cells = [[_cell(row, extra_cells(row), name) for name in columns] for row in rows]
    print_table(columns, cells, title, drop=_DROPPED_IF_NARROW)


def _cell(row: LeaderboardRow, extra_cells: Mapping[str, object], column: str) -> Any:
    """Return the cell of a row for a column of the table."""
    if column in extra_cells:
        return extra_cells[column]
    match column:
        case "rank":
            return row.rank if row.rank == row.rank_last else f"{row.rank}-{row.rank_last}"
        case "run":
            return row.run_id
        case "accuracy [95%]":
            return with_interval(row.accuracy, row.ci_low, row.ci_high)
        case "cost":
            return row.cost_usd
        case "finished":
            return format_time(None if row.finished_at is None else f"{row.finished_at:%Y-%m-%dT%H:%M:%SZ}")
        case _:
            value = getattr(row, column)
            return "" if column in ("point", "stopped") and value is None else value


def _table_title(row: LeaderboardRow) -> str:
    """Return the benchmark, the task and the selection of datapoints that all runs of a table share."""
    selection = f", {row.selection}" if row.selection else ""
    return f"{row.benchmark}  (task {(row.task or '')[:8]}{selection})"
