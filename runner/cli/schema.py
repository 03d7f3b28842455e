"""`nip-run schema`: the JSON Schemas, for editors."""

from __future__ import annotations

import argparse

from runner.cli.output import print_json
from runner.exit_codes import ExitCode


def execute(args: argparse.Namespace) -> int:
    if args.name == "protocol":
        from runner.protocols.load import protocol_editor_schema as made
    else:
        from runner.spec.schemas import editor_schema as made
    print_json(made())
    return ExitCode.DONE
