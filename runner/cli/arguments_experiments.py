"""The arguments of the commands that play, and of those before a game."""

from __future__ import annotations

import argparse
from pathlib import Path

from runner.cli.arguments import RUN, folder, shard, specs


def allow_key(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-key",
        action="append",
        default=[],
        metavar="VAR=HOST",
        help="let a spec that came from elsewhere send this variable to this host; may be given again",
    )


def allow_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-command",
        action="append",
        default=[],
        metavar="PROGRAM",
        help="let a spec that came from elsewhere run this program, which gets the whole environment; may be given "
        "again",
    )


def allow_host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allow-host",
        action="append",
        default=[],
        metavar="HOST",
        help="let a spec that came from elsewhere ask this server, without a key (HOST, HOST:PORT; http:// before it "
        "where it is in the clear); may be given again",
    )


def check(parser: argparse.ArgumentParser) -> None:
    specs(parser)
    shard(parser, "the part K of N: its games, its calls, and its share of each limit")


def merge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        metavar="RUN|PART",
        help="runs that were played in shards, by id or folder; and folders of parts that stand elsewhere",
    )


def run(parser: argparse.ArgumentParser) -> None:
    specs(parser)
    shard(parser, "play the part K of N of the run, such as 3/8; the last part that ends makes one run of all")
    parser.add_argument("--replay", metavar="RUN", help="play with the answers of this run: no network, no cost")
    parser.add_argument(
        "--until-round",
        type=int,
        metavar="N",
        help="with --replay: rounds before N are replayed, the rest is asked live",
    )
    parser.add_argument(
        "--set-model",
        action="append",
        default=[],
        metavar="GROUP=NAME",
        help="the model that you trained for a group with `backend: files`",
    )
    allow_key(parser)
    allow_command(parser)
    allow_host(parser)
    parser.add_argument("--again", action="store_true", help="play a finished run again, as a run of its own")
    parser.add_argument(
        "--run-id", metavar="ID", help="the run's id; default: the spec's name and the hash of its content"
    )


def rejudge(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="+",
        metavar="RUN|KEY=VALUE",
        help=f"runs ({RUN}; or a folder), then overrides of the judge: its model, templates (prompts=FOLDER), "
        "decision_format, votes, and a sweep over any of them",
    )
    parser.add_argument(
        "--verdict",
        choices=("last", "each"),
        default="last",
        help="last: where the first judge decided, or had its last chance to; each: at every turn up to there in which "
        "the judge may decide; default: last",
    )
    allow_key(parser)
    allow_command(parser)
    allow_host(parser)
    parser.add_argument("--again", action="store_true", help="judge again what was judged so, as a run of its own")
    parser.add_argument("--run-id", metavar="ID", help="the run's id; default: by the first run's name")


def render(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="+", metavar="SPEC AGENT [KEY=VALUE...]", help="a spec, an agent of it, and overrides"
    )
    parser.add_argument("--datapoint", metavar="ID", help="default: the first")
    parser.add_argument(
        "--round",
        type=int,
        metavar="N",
        help="default: the first in which the agent speaks; earlier rounds are filled by the dummy provider",
    )
    parser.add_argument(
        "--stance",
        choices=("accept", "reject"),
        help="of a spec with `stances: both`, the play with this stance; of opposed provers, the first's",
    )
    parser.add_argument(
        "--swapped", action="store_true", help="of a spec with `seats: swap`, the play with exchanged players"
    )


def plan(parser: argparse.ArgumentParser) -> None:
    specs(parser)
    parser.add_argument(
        "--detect", type=float, metavar="D", help="the difference of accuracy to see, such as 0.05 for five points"
    )
    known = parser.add_mutually_exclusive_group()
    known.add_argument(
        "--from",
        nargs="+",
        default=[],
        dest="from_runs",
        metavar="RUN",
        help="take the variance from this run of a like system, or from two runs that are like those to be compared",
    )
    known.add_argument(
        "--against", metavar="RUN", help="compare with this run, which is not played again; its variance is used"
    )
    parser.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="say how long the run takes and what bounds it, with so many workers (execution.processes)",
    )
    parser.add_argument("--shards", type=int, metavar="N", help="likewise, in so many shards, each on its own machine")
    parser.add_argument("--cores", type=int, metavar="N", help="of all that workers have; default: of this machine")
    parser.add_argument(
        "--like", metavar="RUN", help="its games and servers are known from this run; default: the newest that fits"
    )
    parser.add_argument(
        "--measure", type=float, metavar="S", help="how many seconds to measure each thing here; default: 2"
    )


def schema(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", default="experiment", choices=("experiment", "protocol"), help="default: experiment"
    )


def init(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "folder", type=folder, nargs="?", default=Path(), metavar="DIR", help="made if it is not there; default: here"
    )
    parser.add_argument(
        "--protocol",
        choices=("adp", "debate", "merlin_arthur", "mnip", "nip", "solo_verifier"),
        help="copy this built-in protocol and its prompts, to edit; default: prompts of a few lines for nip",
    )
