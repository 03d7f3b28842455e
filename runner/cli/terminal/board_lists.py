"""Rows of a leaderboard as lists for people, one a task, and below each what cannot rank."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from runner.base.text import with_interval
from runner.cli.terminal.output import print_table, say, short_time
from runner.results.leaderboard.local_board import lists_of, selection_in_words

_DROPPED = ("cost", "finished", "clusters", "models", "protocol", "seed", "n")
"""What a narrow terminal does without, the first of it first."""


def show_lists(records: Sequence[dict[str, Any]], also: Sequence[str] = ()) -> None:
    """A list for each task of each benchmark, with these columns too."""
    for number, listed in enumerate(lists_of(records)):
        if number:
            say()
        _show_list(listed, also)


def _show_list(rows: Sequence[Mapping[str, Any]], also: Sequence[str]) -> None:
    """One task's list, and below it what cannot rank."""
    ranked = [row for row in rows if row["rank"] is not None]
    others = [row for row in rows if row["rank"] is None]
    if ranked:
        _print(ranked, _title(ranked[0]), first=("rank",), last=(*also, *_LAST))
    if others:
        title = "without a rank:" if ranked else f"{rows[0]['benchmark']}, without a rank:"
        _print(others, title, first=(), last=(*also, "reason"))


_LAST = ("protocol", "models", "clusters", "cost", "finished")


def _print(rows: Sequence[Mapping[str, Any]], title: str, *, first: Sequence[str], last: Sequence[str]) -> None:
    point = ("point",) if any(row["point"] for row in rows) else ()
    stopped = ("stopped",) if any(row["stopped"] for row in rows) else ()
    columns = (*first, "run", "accuracy [95%]", "n", "failures", "seed", *point, *stopped, *last)
    print_table(columns, [[_cell(row, name) for name in columns] for row in rows], title, drop=_DROPPED)


def _cell(row: Mapping[str, Any], column: str) -> Any:
    """What a row has for a column of the table."""
    match column:
        case "rank":
            first, last = row["rank"], row["rank_last"]
            return first if first == last else f"{first}-{last}"
        case "run":
            return row.get("shown_as", row["run_id"])
        case "accuracy [95%]":
            return with_interval(row["accuracy"], row["ci_low"], row["ci_high"])
        case "cost":
            return row["cost_usd"]
        case "finished":
            return _finished(row)
        case _:
            return "" if column in ("point", "stopped") and row[column] is None else row[column]


def _finished(row: Mapping[str, Any]) -> str:
    at = row["finished_at"]
    return short_time(None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}")


def _title(row: Mapping[str, Any]) -> str:
    """What the runs of a list have in common."""
    selection = selection_in_words(row)
    return f"{row['benchmark']}  (task {row['task'][:8]}{selection and f', {selection}'})"
