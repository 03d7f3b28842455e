"""Draw a figure of runs for a paper, or write its data.

Examples:
  nip-run plot learning_curve RUN RUN RUN -o curve.svg
  nip-run plot accuracy_by_protocol RUN RUN -o accuracy.pdf
  nip-run plot reliability last -o reliability.csv
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import RunError, UsageError, os_errors_as
from runner.base.exit_codes import ExitCode
from runner.base.text import in_one_line
from runner.cli.arguments import RUNS_HELP, RenamedOption
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.pages.figures.figure import Figure
    from runner.results.leaderboard.results_folder import Results


SUFFIXES = (".svg", ".pdf", ".png", ".csv", ".json")


FIGURES = (
    "learning_curve", "accuracy_by_protocol", "always_failed", "reliability", "forest", "differences", "protocol",
    "rounds", "outcomes", "frontier",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("figure", metavar="NAME", choices=FIGURES, help=f"one of {', '.join(FIGURES)}")
    add("runs", nargs="+", metavar="RUN", help=f"{RUNS_HELP}; runs that differ only in their seed are pooled")
    output = parser.add_mutually_exclusive_group(required=True)
    output.add_argument(
        "-o",
        "--out",
        type=Path,
        metavar="FILE",
        help="FILE.svg, FILE.pdf or FILE.png, or FILE.csv or FILE.json for the data",
    )
    output.add_argument("--output", type=Path, dest="out", action=RenamedOption, new="--out")
    add(
        "--width",
        choices=("column", "page"),
        default="column",
        help="width of a column (3.25 in) or of a page (6.75 in)",
    )
    add("--title", metavar="TEXT", help="title above the figure; default: none")
    add("--metric", metavar="METRIC", help="with forest and frontier; default: accuracy")


def execute(args: argparse.Namespace) -> int:
    from runner.base.storage.atomic_files import atomic_write
    from runner.pages.figures.catalog import figure

    path: Path = args.out
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"-o {path}: the file name must end in .svg, .pdf or .png, or in .csv or .json for the data")
    results: Results = args.results
    drawn_figure = figure(args.figure, [results.find(name) for name in args.runs], args.metric)
    content = _encode_figure(drawn_figure, path.suffix.lower(), args)
    with os_errors_as(RunError, f"cannot write {path}", "; choose another path with -o"):
        atomic_write(path, content)
    note(*drawn_figure.notes)
    if args.json:
        facts = {"figure": drawn_figure.name, "path": str(path), "bytes": len(content), "rows": drawn_figure.frame()}
        print_json({**facts, "notes": list(drawn_figure.notes)})
    elif not args.quiet:
        say(f"{in_one_line(str(path))}  {len(content):,} bytes")
    return ExitCode.DONE


def _encode_figure(drawn_figure: Figure, suffix: str, args: argparse.Namespace) -> bytes:
    from runner.pages.charts.styles import PAPERS

    if suffix == ".json":
        return drawn_figure.json()
    if suffix == ".csv":
        return drawn_figure.csv().encode()
    return drawn_figure.image(suffix, PAPERS[args.width], args.title)
