"""Arguments that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.results.default_folder import no_folder

MAX_PORT = 65_535
RUN = "a run id, the start of one, or last"
RUNS = "a run's id, the start of one, `last`, `last~N`, or its folder"
REF = "KIND/OWNER/NAME@VERSION, without a version the newest, or sha256:..."
WHERE = "a folder, git:URL, hf:OWNER/NAME or https://HOST; default: $NIP_RUN_REGISTRY"


def folder(text: str) -> Path:
    """Return the path of a folder, which need not exist."""
    wrong = no_folder(text)
    if wrong is not None:
        raise argparse.ArgumentTypeError(wrong)
    return Path(text)


def port(text: str) -> int:
    """Return a TCP port; 0 means any free one."""
    number = int(text)
    if not 0 <= number <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{number} is not a port; use 1 to {MAX_PORT}, or 0 for a free one")
    return number


def results_option(path: Path) -> list[str]:
    """Return the words that name a results folder in a command, none for the default one."""
    return [] if path.as_posix() == "results" else ["--results", str(path)]


class OldName(argparse.Action):
    """An option's old name, hidden from help: sets what the new one sets and adds itself to `renamed`."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, new: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **settings)
        self.new = new

    def __call__(
        self, _: argparse.ArgumentParser, args: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        setattr(args, self.dest, value)
        args.renamed = [*args.renamed, (option, self.new)]


def add_shard(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--shard", metavar="K/N", help=what)


def add_specs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="+", metavar="SPEC|KEY=VALUE",
        help="specs or run folders, then overrides: KEY=VALUE sets, +KEY=VALUE adds, ~KEY deletes; keys are dotted",
    )  # fmt: skip


def add_trust(parser: argparse.ArgumentParser) -> None:
    """Add the options that let a spec from elsewhere use keys, programs and servers."""
    add = parser.add_argument
    add(
        "--allow-key",
        action="append",
        default=[],
        metavar="VAR=HOST",
        help="allow a spec from elsewhere to send this variable to this host; repeatable",
    )
    add(
        "--allow-command",
        action="append",
        default=[],
        metavar="PROGRAM",
        help="allow a spec from elsewhere to run this program, which gets the whole environment; repeatable",
    )
    add("--allow-host", action="append", default=[], metavar="HOST",
        help="allow a spec from elsewhere to use this server without a key: HOST or HOST:PORT, after http:// if the "
        "connection is not encrypted; repeatable")  # fmt: skip


def add_registry(parser: argparse.ArgumentParser, what: str = "the registry") -> None:
    parser.add_argument("--from", dest="where", metavar="WHERE", help=f"{what}: {WHERE}")


def add_board(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--board", action="store_true", help=what)
    add_registry(parser, "with --board: the leaderboard of this registry instead")
