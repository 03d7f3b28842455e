"""Write the games of a spec as a Python package for verifiers and the Environments Hub.

Examples:
  nip-run export-env spec.yaml -o nip_games
  nip-run export-env spec.yaml -o nip_games --rows rows.jsonl
  nip-run export-env spec.yaml models.small.chat_format=alternating -o nip_games
"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from runner.base.errors import RunError, UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import comma_join
from runner.cli.arguments import add_spec_arguments, folder_path
from runner.cli.terminal.output import note, print_json, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_spec_arguments(parser)
    add = parser.add_argument
    add(
        "-o",
        "--out",
        required=True,
        type=folder_path,
        metavar="DIR",
        help="the new folder of the package; its name is the name of the environment",
    )
    add(
        "--rows",
        type=Path,
        metavar="FILE",
        help="write the dataset's rows to this file instead of into the package",
    )


def execute(args: argparse.Namespace) -> int:
    from runner.cli.specs import load_points
    from runner.exports.verifiers_env.package import write_package

    points = load_points(args.spec_arguments, args.results.path_of, quiet=args.quiet)
    if len(points) > 1:
        raise UsageError(f"export-env writes one package, and the specs have {len(points)} runs; set the swept keys")
    try:
        written = write_package(points[0].plan.games, args.out, args.rows)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""  # a full disk has no file name
        raise RunError(f"cannot write to {args.out}: {place}{error.strerror}") from error
    if args.json:
        print_json(
            {
                "folder": str(written.folder), "environment": written.name, "agents": dict(written.agents),
                "datapoints": written.datapoints, "games": written.games,
                "rows": None if written.rows is None else str(written.rows),
            }
        )  # fmt: skip
        return ExitCode.DONE
    trainable = [name for name, is_trainable in written.agents.items() if is_trainable]
    say(f"{written.folder}: environment {written.name}, {written.games} games on {written.datapoints} datapoints")
    say(f"trainable: {comma_join(trainable) or 'no agent'}")
    if not args.quiet:
        # Without a separator, pip would ask the package index for a package of this name.
        folder = shlex.quote(str(written.folder) if written.folder.is_absolute() else f"./{written.folder}")
        note(f"next: pip install {folder}, in an environment without nip-run; {folder}/README.md has the commands")
    return ExitCode.DONE
