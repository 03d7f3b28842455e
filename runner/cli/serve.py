"""`nip-run serve`: the registry over HTTP, for a group or for everybody."""

from __future__ import annotations

import argparse
import sys

from runner.cli.output import print_json, say
from runner.errors import UsageError
from runner.exit_codes import ExitCode

MAX_PORT = 65_535
NEEDS = "a server needs packages of its own ({}); pip install 'nip-run[server]'"


def execute(args: argparse.Namespace) -> int:
    if not 0 <= args.port <= MAX_PORT:
        raise UsageError(f"--port {args.port}: a port is from 1 to {MAX_PORT}; 0 takes a free one")
    try:
        from runner.server.settings import Settings
        from runner.server.web.running import serve
    except ImportError as error:
        raise UsageError(NEEDS.format(error)) from error
    settings = Settings(folder=args.folder, database=args.database, blobs=args.blobs)

    def tell(address: str, listening: str) -> None:
        if args.json:
            print_json({"address": address, "listening": listening})
        else:
            say(address)
        sys.stdout.flush()

    serve(settings, args.host, args.port, tell, address=args.address)
    return ExitCode.DONE
