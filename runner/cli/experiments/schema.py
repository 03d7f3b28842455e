"""Print the JSON Schema of a spec, a protocol file or a dataset recipe.

Examples:
  nip-run schema > experiment.schema.json
  nip-run schema protocol
"""

from __future__ import annotations

import argparse

from runner.base.exit_codes import ExitCode
from runner.cli.terminal.output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name",
        nargs="?",
        default="experiment",
        choices=("experiment", "protocol", "recipe"),
        help="default: experiment",
    )


def execute(args: argparse.Namespace) -> int:
    if args.name == "protocol":
        from runner.game.protocols.loader import protocol_editor_schema as build_schema
    elif args.name == "recipe":
        from runner.curation.generation.recipe import recipe_schema as build_schema
    else:
        from runner.spec.schemas import editor_schema as build_schema
    print_json(build_schema())
    return ExitCode.DONE
