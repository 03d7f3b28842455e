"""The arguments of the commands that make pages and figures; what each means is in `runner/cli/COMMAND.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.cli.arguments import shard

RUNS = "a run's id, the start of one, `last`, `last~N`, or its folder"


def _board(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--board", action="store_true", help=what)
    parser.add_argument(
        "--from",
        dest="where",
        metavar="WHERE",
        help="with --board: of what is published there instead: a folder, git:URL, hf:OWNER/NAME or https://HOST",
    )


def report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help=RUNS)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", type=Path, metavar="FILE.html", help="one page that needs no other file")
    where.add_argument("--dir", type=Path, metavar="DIR", help="index.html and its data in pieces, for a web server")
    _board(parser, "the leaderboard too, or alone: a list for each task")


def view(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help=f"{RUNS}; default: last, the newest run")
    shard(parser, "of runs that are played in shards: the part K of N")
    parser.add_argument("--port", type=int, default=0, metavar="N", help="default: one that is free")
    parser.add_argument(
        "--no-open", dest="open", action="store_false", help="print where the page is, and open no browser"
    )
    _board(parser, "the leaderboard instead: a list for each task, made anew when the page is loaded")


def notes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=RUNS)
    parser.add_argument(
        "rollout", metavar="ROLLOUT", nargs="?", help="a rollout id, the start of one, or a datapoint's id"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--add", metavar="TEXT", help="keep a note of the rollout, or of the run")
    what.add_argument("--remove", metavar="ID", help="take a note back")
    what.add_argument("--export", type=Path, metavar="FILE", help="write the notes to a file, .jsonl or .csv")
    what.add_argument(
        "--import", dest="take_in", type=Path, metavar="FILE", help="take in a notes.jsonl, such as a report saves"
    )
    parser.add_argument(
        "--tag", action="append", default=[], metavar="TAG", help="with --add: its tag; else only notes with it; again"
    )
    parser.add_argument("--by", metavar="NAME", help="with --add: who wrote it")
    parser.add_argument("--search", metavar="WORDS", help="only notes that have all these words in text or tags")


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
