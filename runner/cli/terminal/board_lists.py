"""Print a leaderboard as one table for each task, followed by the rows without a rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.base.text import with_interval
from runner.cli.terminal.output import format_time, note, print_table, say
from runner.results.leaderboard.model import LeaderboardRow, describe_ranks, lists_of

_DROPPED_IF_NARROW = ("cost", "finished", "clusters", "models", "protocol", "seed", "n")
"""Columns that a narrow terminal leaves out, in this order."""


ExtraCells = Mapping[str, Any]
"""Cells of a row by column name, for columns that are not fields of the row."""


def show_lists(
    records: Sequence[LeaderboardRow],
    extra_columns: Sequence[str] = (),
    extra: Callable[[Any], ExtraCells] | None = None,
) -> None:
    """Print a table for each task of each benchmark. `extra` returns a row's cells in `extra_columns`."""
    for index, rows in enumerate(lists_of(records)):
        if index:
            say()
        _show_list(rows, extra_columns, extra or (lambda _: {}))


def _show_list(
    rows: Sequence[LeaderboardRow], extra_columns: Sequence[str], extra: Callable[[Any], ExtraCells]
) -> None:
    """Print one task's ranked rows, then its unranked ones."""
    ranked = [row for row in rows if row.rank is not None]
    unranked = [row for row in rows if row.rank is None]
    if ranked:
        _print_list_table(ranked, extra, _title(ranked[0]), first=("rank",), last=(*extra_columns, *_LAST_COLUMNS))
        if len(ranked) > 1:
            note(describe_ranks(len(ranked)))
    if unranked:
        title = "without a rank:" if ranked else f"{rows[0].benchmark}, without a rank:"
        _print_list_table(unranked, extra, title, first=(), last=(*extra_columns, "reason"))


_LAST_COLUMNS = ("protocol", "models", "clusters", "cost", "finished")


def _print_list_table(
    rows: Sequence[LeaderboardRow], extra: Callable[[Any], ExtraCells], title: str, *, first: Sequence[str],
    last: Sequence[str],
) -> None:  # fmt: skip
    point = ("point",) if any(row.point for row in rows) else ()
    stopped = ("stopped",) if any(row.stopped for row in rows) else ()
    columns = (*first, "run", "accuracy [95%]", "n", "lost", "undecided", "seed", *point, *stopped, *last)
    cells = [[_cell(row, extra(row), name) for name in columns] for row in rows]
    print_table(columns, cells, title, drop=_DROPPED_IF_NARROW)


def _cell(row: LeaderboardRow, extra: ExtraCells, column: str) -> Any:
    """Return the cell of a row for a column of the table."""
    if column in extra:
        return extra[column]
    match column:
        case "rank":
            first, last = row.rank, row.rank_last
            return first if first == last else f"{first}-{last}"
        case "run":
            return row.run_id
        case "accuracy [95%]":
            return with_interval(row.accuracy, row.ci_low, row.ci_high)
        case "cost":
            return row.cost_usd
        case "finished":
            return _format_finished(row)
        case _:
            value = getattr(row, column)
            return "" if column in ("point", "stopped") and value is None else value


def _format_finished(row: LeaderboardRow) -> str:
    finished = row.finished_at
    return format_time(None if finished is None else f"{finished:%Y-%m-%dT%H:%M:%SZ}")


def _title(row: LeaderboardRow) -> str:
    """Return the benchmark, task and row selection that the runs of a list share."""
    selection = f", {row.selection}" if row.selection else ""
    return f"{row.benchmark}  (task {(row.task or '')[:8]}{selection})"
