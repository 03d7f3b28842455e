"""`nip-run schema`: the JSON Schemas, for editors."""

from __future__ import annotations

import argparse

from runner.base.exit_codes import ExitCode
from runner.cli.terminal.output import print_json


def execute(args: argparse.Namespace) -> int:
    if args.name == "protocol":
        from runner.game.protocols.loader import protocol_editor_schema as made
    else:
        from runner.spec.schemas import editor_schema as made
    print_json(made())
    return ExitCode.DONE
