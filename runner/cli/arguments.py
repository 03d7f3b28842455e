"""Arguments and help texts that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runner.base.errors import UsageError
from runner.base.text import comma_join, did_you_mean
from runner.results.default_folder import folder_problem

if TYPE_CHECKING:
    from runner.documents.releases.reference import Kind

MAX_PORT = 65_535

# Parts of the help texts of several commands.
RUN_HELP = "a run id, the start of one, or last"
RUNS_HELP = "a run's id, the start of one, `last`, or its folder"
REFERENCE_HELP = "KIND/OWNER/NAME@VERSION, without a version the newest, or sha256:..."
SANDBOX_HELP = (
    "a command that starts a container, such as 'apptainer exec --containall IMAGE'; nip-run appends the program; "
    "the container needs Python 3.11 or newer as python3"
)
OPTIONAL_REGISTRY_HELP = "a folder, git:URL, hf:OWNER/NAME or https://HOST"
REGISTRY_HELP = f"{OPTIONAL_REGISTRY_HELP}; default: $NIP_RUN_REGISTRY"


def folder_path(text: str) -> Path:
    """Return the path of a folder, which need not exist."""
    problem = folder_problem(text)
    if problem is not None:
        raise argparse.ArgumentTypeError(problem)
    return Path(text)


def port(text: str) -> int:
    """Return a TCP port; 0 means any free port."""
    number = int(text)
    if not 0 <= number <= MAX_PORT:
        raise argparse.ArgumentTypeError(f"{number} is not a port; use 1 to {MAX_PORT}, or 0 for a free one")
    return number


def parse_kind(text: str | None) -> Kind | None:
    """Return the kind of component that `--kind` names."""
    from runner.documents.releases.reference import Kind

    if text is not None and text not in set(Kind):
        raise UsageError(
            f"--kind {text}: unknown kind{did_you_mean(text, Kind) or f'; choose one of {comma_join(Kind)}'}"
        )
    return None if text is None else Kind(text)


class RenamedOption(argparse.Action):
    """The old name of an option, which help does not list. A use sets the value of the new option and prints a note."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, new: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **settings)
        self.new = new

    def __call__(
        self, _: argparse.ArgumentParser, args: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        setattr(args, self.dest, value)
        args.renamed = [*args.renamed, (option, self.new)]


def add_shard_option(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("--shard", metavar="K/N", help=help_text)


def add_spec_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "spec_arguments", nargs="+", metavar="SPEC|KEY=VALUE",
        help="specs or run folders, then overrides: KEY=VALUE sets a key (dataset.limit=9), +KEY=VALUE adds a key, "
        "~KEY removes it",
    )  # fmt: skip


def add_trust_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that allow a downloaded spec to use keys, programs and servers."""
    add = parser.add_argument
    add(
        "--allow-key",
        action="append",
        default=[],
        metavar="VAR=HOST",
        help="allow a downloaded spec to send this variable to this host; repeatable",
    )
    add(
        "--allow-command",
        action="append",
        default=[],
        metavar="PROGRAM",
        help="allow a downloaded spec to run this program, which gets all environment variables; repeatable",
    )
    add("--allow-host", action="append", default=[], metavar="HOST",
        help="allow a downloaded spec to use this server without a key: HOST or HOST:PORT, after http:// if the "
        "connection is not encrypted; repeatable")  # fmt: skip


def add_registry_option(parser: argparse.ArgumentParser, help_text: str = f"the registry: {REGISTRY_HELP}") -> None:
    parser.add_argument("--from", dest="registry", metavar="WHERE", help=help_text)


def add_board_options(parser: argparse.ArgumentParser, help_text: str) -> None:
    parser.add_argument("--board", action="store_true", help=help_text)
    add_registry_option(parser, f"with --board: the leaderboard of this registry instead: {OPTIONAL_REGISTRY_HELP}")
