"""The arguments of the commands that make pages and figures; what each means is in `runner/cli/COMMAND.py`."""

from __future__ import annotations

import argparse
from pathlib import Path

RUNS = "a run's id, the start of one, `last`, `last~N`, or its folder"


def report(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("runs", nargs="*", metavar="RUN", help=RUNS)
    where = parser.add_mutually_exclusive_group(required=True)
    where.add_argument("-o", "--output", type=Path, metavar="FILE.html", help="one page that needs no other file")
    where.add_argument("--dir", type=Path, metavar="DIR", help="index.html and its data in pieces, for a web server")
    parser.add_argument("--board", action="store_true", help="the leaderboard too, or alone: a list for each task")
    parser.add_argument(
        "--from",
        dest="where",
        metavar="WHERE",
        help="with --board: of what is published there instead: a folder, git:URL or hf:OWNER/NAME",
    )
