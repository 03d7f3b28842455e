"""`nip-run plot`: a figure of runs, fit for a paper, or the rows that it is drawn from."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.base.errors import RunError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.storage.atomic_files import atomic_write
from runner.base.text import in_one_line
from runner.cli.terminal.output import note, print_json, say
from runner.pages.charts.styles import PAPERS
from runner.pages.figures.catalog import figure
from runner.pages.figures.figure import Figure
from runner.results.leaderboard.results_folder import Results

SUFFIXES = (".svg", ".csv", ".json")


def execute(args: argparse.Namespace) -> int:
    path: Path = args.output
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"-o {path}: the name of a figure ends in .svg; .csv and .json are its rows")
    results = Results(args.results)
    made = figure(args.figure, [results.find(name) for name in args.runs], args.metric)
    content = _written(made, path.suffix.lower(), args)
    try:
        atomic_write(path, content)
    except OSError as error:
        raise RunError(f"cannot write {path}: {error.strerror}") from error
    for line in made.notes:
        note(line)
    if args.json:
        facts = {"figure": made.name, "path": str(path), "bytes": len(content), "rows": made.frame()}
        print_json({**facts, "notes": list(made.notes)})
    elif not args.quiet:
        say(f"{in_one_line(str(path))}  {len(content):,} bytes")
    return ExitCode.DONE


def _written(made: Figure, suffix: str, args: argparse.Namespace) -> bytes:
    if suffix == ".json":
        return made.json()
    if suffix == ".csv":
        return made.csv().encode()
    return f"{made.svg(PAPERS[args.width], args.title)}\n".encode()
