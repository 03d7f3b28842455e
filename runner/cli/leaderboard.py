"""`nip-run leaderboard`: ranked rows with intervals, one list a task; or the file made again."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import groupby
from typing import Any

from runner.cli.output import note, print_json, print_table, say, short_time, with_interval
from runner.errors import NipRunError, UsageError
from runner.exit_codes import ExitCode
from runner.results.manifest import Status
from runner.results.results import Results
from runner.text import comma_join, did_you_mean

_DROPPED = ("cost", "finished", "clusters", "models", "protocol", "seed", "n")
"""What a narrow terminal does without, the first of it first."""


def execute(args: argparse.Namespace) -> int:
    if args.where is not None:
        if args.rebuild:
            raise UsageError("--rebuild makes the file of the results folder again; leave it out with --from")
        from runner.cli.published_board import show_published

        return show_published(args.where, args.benchmark, as_json=args.json)
    results = Results(args.results)
    if args.rebuild:
        return _rebuild(results, as_json=args.json)
    if args.benchmark is not None:
        _check_benchmark(results, args.benchmark)
    where, values = ("WHERE benchmark = ?", [args.benchmark]) if args.benchmark else ("", [])
    columns, rows = results.board.query(f"SELECT * FROM leaderboard {where}", values)
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    if args.json:
        print_json(records)
        return ExitCode.DONE
    for row in records:
        row["reason"] = _reason(row, results)
    if not records:
        say(
            f"no rows in {results.path}"
            + (f" for {args.benchmark!r}" if args.benchmark else "")
            + _without_board(results)
        )
    else:
        show_lists(records)
    return ExitCode.DONE


def show_lists(records: Sequence[Mapping[str, Any]], also: Sequence[str] = ()) -> None:
    """A list for each task of each benchmark, with these columns too."""
    for number, (_, listed) in enumerate(groupby(records, key=lambda row: (row["benchmark"], row["list"]))):
        if number:
            say()
        _show_list(list(listed), also)


def _check_benchmark(results: Results, name: str) -> None:
    """Take a benchmark that a run is on the board for.

    Raises:
        UsageError: none is.
    """
    _, rows = results.board.query("SELECT DISTINCT benchmark FROM runs WHERE benchmark IS NOT NULL ORDER BY 1")
    known = [str(row[0]) for row in rows]
    if name in known:
        return
    there = did_you_mean(name, known) or (f"; there are: {comma_join(known)}" if known else _without_board(results))
    raise UsageError(f"no benchmark {name!r} in {results.path}{there}")


def _without_board(results: Results) -> str:
    """What to do where there are runs and no board."""
    runs = len(list(results.board.runs())) if not results.board.path.is_file() else 0
    return f"; {runs} run folders are there, and no board: {results.board.rebuilding}" if runs else ""


def _rebuild(results: Results, *, as_json: bool) -> int:
    runs = results.board.rebuild()
    for damage in results.damaged():
        note(damage)
    if as_json:
        print_json({"runs": runs})
    else:
        say(f"{results.board.path} holds {len(runs)} runs")
    return ExitCode.DONE


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


def _reason(row: Mapping[str, Any], results: Results) -> str | None:
    """Why a run does not rank; of one that its budget stopped, that."""
    reason: str | None = row["reason"]
    if row["status"] != Status.INTERRUPTED:
        return reason
    with suppress(NipRunError):  # the board may have runs whose folders are gone
        why = results.run(row["run_id"]).manifest().why_stopped
        return f"unfinished: {why}" if why else reason
    return reason


def _finished(row: Mapping[str, Any]) -> str:
    at = row["finished_at"]
    return short_time(None if at is None else f"{at:%Y-%m-%dT%H:%M:%SZ}")


def _title(row: Mapping[str, Any]) -> str:
    """What the runs of a list have in common."""
    names = ("split", "limit", "filter", "group_by")
    selection = "".join(f", {name.replace('_', ' ')} {row[name]}" for name in names if row[name] is not None)
    return f"{row['benchmark']}  (task {row['task'][:8]}{selection})"
