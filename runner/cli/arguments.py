"""What arguments of several commands are made of."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner.results.default_folder import no_folder

RUN = "a run id, the start of one, or last"


def folder(text: str) -> Path:
    """A folder of the command line, which need not be there."""
    wrong = no_folder(text)
    if wrong is not None:
        raise argparse.ArgumentTypeError(wrong)
    return Path(text)


class OldName(argparse.Action):
    """An option by its old name: hidden from help, it sets what the new one sets and adds itself to `renamed`."""

    def __init__(self, option_strings: Sequence[str], dest: str, *, new: str, **settings: Any) -> None:
        super().__init__(option_strings, dest, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **settings)
        self.new = new

    def __call__(
        self, _: argparse.ArgumentParser, args: argparse.Namespace, value: Any, option: str | None = None
    ) -> None:
        setattr(args, self.dest, value)
        args.renamed = [*args.renamed, (option, self.new)]


def shard(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--shard", metavar="K/N", help=what)


def specs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words",
        nargs="+",
        metavar="SPEC|KEY=VALUE",
        help="specs or folders of runs, then overrides: KEY=VALUE sets, +KEY=VALUE adds, ~KEY deletes; keys are dotted",
    )
