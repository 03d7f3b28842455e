"""`nip-run sql`: one read-only question to the leaderboard and all runs' records."""

from __future__ import annotations

import argparse

from runner.cli.output import print_json, print_table
from runner.exit_codes import ExitCode
from runner.results.results import Results


def execute(args: argparse.Namespace) -> int:
    columns, rows = Results(args.results).board.query(args.sql)
    if args.json:
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        print_table(columns, rows)
    return ExitCode.DONE
