"""The arguments of the commands that make pages and figures; what each means is in `runner/cli/COMMAND.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

RUNS = "a run's id, the start of one, `last`, `last~N`, or its folder"


def report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="+", metavar="RUN", help=RUNS)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", type=Path, metavar="FILE.html", help="one page that needs no other file")
    where.add_argument("--dir", type=Path, metavar="DIR", help="index.html and its data in pieces, for a web server")


FIGURES = (
    "learning_curve", "accuracy_by_protocol", "always_failed", "reliability", "forest", "rounds", "outcomes",
    "frontier",
)  # fmt: skip
"""As `pages.figures.made` has them, which is too heavy for help."""


def plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("figure", metavar="NAME", choices=FIGURES, help=f"one of {', '.join(FIGURES)}")
    parser.add_argument("runs", nargs="+", metavar="RUN", help=f"{RUNS}; runs of one game are pooled as its seeds")
    parser.add_argument(
        "-o", "--output", type=Path, metavar="FILE", required=True, help="FILE.svg; FILE.csv or FILE.json for its rows"
    )
    parser.add_argument(
        "--width",
        choices=("column", "page"),
        default="column",
        help="of a column (3.25 in) or a page (6.75 in) of a paper",
    )
    parser.add_argument(
        "--title", metavar="TEXT", help="drawn above the figure; none by default: a paper has its caption"
    )
    parser.add_argument("--metric", metavar="METRIC", help="of forest and frontier; accuracy by default")
