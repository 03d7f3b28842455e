"""Rows of a leaderboard as lists for people, one a task, and below each what cannot rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runner.base.text import with_interval
from runner.cli.terminal.output import print_table, say, short_time
from runner.results.leaderboard.model import LeaderboardRow, lists_of

_DROPPED = ("cost", "finished", "clusters", "models", "protocol", "seed", "n")
"""What a narrow terminal does without, the first of it first."""


Cells = Mapping[str, Any]
"""The cells of a row, by the names of their columns, that are not those of its fields."""


def show_lists(
    records: Sequence[LeaderboardRow], also: Sequence[str] = (), cells: Callable[[Any], Cells] | None = None
) -> None:
    """Print a list for each task of each benchmark; `cells` has the cells of further columns of a row."""
    for number, listed in enumerate(lists_of(records)):
        if number:
            say()
        _show_list(listed, also, cells or (lambda _: {}))


def _show_list(rows: Sequence[LeaderboardRow], also: Sequence[str], cells: Callable[[Any], Cells]) -> None:
    """One task's list, and below it what cannot rank."""
    ranked = [row for row in rows if row.rank is not None]
    others = [row for row in rows if row.rank is None]
    if ranked:
        _print(ranked, cells, _title(ranked[0]), first=("rank",), last=(*also, *_LAST))
    if others:
        title = "without a rank:" if ranked else f"{rows[0].benchmark}, without a rank:"
        _print(others, cells, title, first=(), last=(*also, "reason"))


_LAST = ("protocol", "models", "clusters", "cost", "finished")


def _print(
    rows: Sequence[LeaderboardRow], cells: Callable[[Any], Cells], title: str, *, first: Sequence[str],
    last: Sequence[str],
) -> None:  # fmt: skip
    point = ("point",) if any(row.point for row in rows) else ()
    stopped = ("stopped",) if any(row.stopped for row in rows) else ()
    columns = (*first, "run", "accuracy [95%]", "n", "failures", "seed", *point, *stopped, *last)
    print_table(columns, [[_cell(row, cells(row), name) for name in columns] for row in rows], title, drop=_DROPPED)


def _cell(row: LeaderboardRow, cells: Cells, column: str) -> Any:
    """Return what a row has for a column of the table."""
    if column in cells:
        return cells[column]
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
            return _finished(row)
        case _:
            value = getattr(row, column)
            return "" if column in ("point", "stopped") and value is None else value


def _finished(row: LeaderboardRow) -> str:
    at = row.finished_at
    return short_time(None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}")


def _title(row: LeaderboardRow) -> str:
    """What the runs of a list have in common."""
    selection = f", {row.selection}" if row.selection else ""
    return f"{row.benchmark}  (task {(row.task or '')[:8]}{selection})"
