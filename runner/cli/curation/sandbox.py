"""Check which sandbox of this machine can run untrusted programs.

Examples:
  nip-run sandbox check
  nip-run sandbox check --command 'podman run -i --rm --network=none --pids-limit=100 python:3.12-slim'
"""

from __future__ import annotations

import argparse
import shlex

from runner.base.exit_codes import ExitCode
from runner.cli.arguments import SANDBOX_HELP
from runner.cli.terminal.output import print_json, print_table, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "action",
        metavar="ACTION",
        choices=("check",),
        help="check: attack each sandbox, and show which attacks succeed",
    )
    add("--command", type=shlex.split, default=[], dest="container_command", metavar="COMMAND", help=SANDBOX_HELP)


def execute(args: argparse.Namespace) -> int:
    from runner.curation.sandbox.probe import check_mechanisms

    checks = list(check_mechanisms(args.container_command))
    used = next((check.name for check in checks if check.blocks_all), None)
    if args.json:
        rows = [
            {
                "sandbox": check.name, "blocks_all": check.blocks_all, "landlock": check.has_landlock,
                "escapes": check.escapes, "problem": check.problem,
            }
            for check in checks
        ]  # fmt: skip
        print_json({"used": used, "sandboxes": rows})
    else:
        print_table(
            ("sandbox", "Landlock", "result"),
            [(check.name, "yes" if check.has_landlock else "no", check.describe()) for check in checks],
        )
        say(f"Programs run in: {used}." if used else "No sandbox blocks all attacks, so no program will be run.")
    return ExitCode.DONE if used else ExitCode.FAILED
