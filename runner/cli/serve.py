"""`nip-run serve`: the registry over HTTP, for a group or for everybody."""

from __future__ import annotations

import argparse

from runner.cli.output import say
from runner.exit_codes import ExitCode
from runner.server.settings import Settings
from runner.server.web.running import serve


def execute(args: argparse.Namespace) -> int:
    settings = Settings(
        folder=args.folder, database=args.database, blobs=args.blobs,
        address=args.address or f"http://{args.host}:{args.port}",
    )  # fmt: skip
    serve(settings, args.host, args.port, say)
    return ExitCode.DONE
