"""`nip-run leaderboard`: ranked rows with intervals, or the file made again."""

from __future__ import annotations

import argparse

from runner.cli.output import note, print_json, print_table, say, with_interval
from runner.exit_codes import ExitCode
from runner.results.results import Results


def execute(args: argparse.Namespace) -> int:
    results = Results(args.results)
    if args.rebuild:
        runs = results.board.rebuild()
        for damage in results.damaged():
            note(damage)
        if args.json:
            print_json({"runs": runs})
        else:
            say(f"{results.board.path} holds {len(runs)} runs")
        return ExitCode.DONE
    where, values = ("WHERE benchmark = ?", [args.benchmark]) if args.benchmark else ("", [])
    columns, rows = results.board.query(f"SELECT * FROM leaderboard {where}", values)
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    if args.json:
        print_json(records)
        return ExitCode.DONE
    if not records:
        say(f"no rows in {results.path}" + (f" for {args.benchmark!r}" if args.benchmark else ""))
        return ExitCode.DONE
    for board in dict.fromkeys(record["benchmark"] for record in records):
        shown = [
            (
                with_interval(r["accuracy"], r["ci_low"], r["ci_high"]), r["n"], r["clusters"], r["run_id"],
                r["protocol"], r["models"], r["cost_usd"], r["finished_at"],
            )
            for r in records
            if r["benchmark"] == board
        ]  # fmt: skip
        print_table(
            ("accuracy [95%]", "n", "datapoints", "run", "protocol", "models", "cost", "finished"), shown, title=board
        )
    return ExitCode.DONE
