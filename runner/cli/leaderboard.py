"""`nip-run leaderboard`: ranked rows with intervals, one list a task; or the file made again."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from runner.cli.board_lists import show_lists
from runner.cli.output import note, print_json, say
from runner.errors import NipRunError, UsageError
from runner.exit_codes import ExitCode
from runner.results.manifest import Status
from runner.results.results import Results
from runner.text import comma_join, did_you_mean


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


def _reason(row: Mapping[str, Any], results: Results) -> str | None:
    """Why a run does not rank; of one that its budget stopped, that."""
    reason: str | None = row["reason"]
    if row["status"] != Status.INTERRUPTED:
        return reason
    with suppress(NipRunError):  # the board may have runs whose folders are gone
        why = results.run(row["run_id"]).manifest().why_stopped
        return f"unfinished: {why}" if why else reason
    return reason
