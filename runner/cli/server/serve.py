"""Serve a registry over HTTP.

Examples:
  nip-run serve registry
  nip-run serve registry --port 0
  nip-run serve registry --address https://registry.example.org
"""

from __future__ import annotations

import argparse
import math
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.errors import UsageError
from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.arguments import port
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.server.settings import Settings

MAX_QUOTA = 1 << 30
"""Maximum number of GiB per account."""
MISSING_PACKAGES = "the server needs additional packages ({}); install them with: pip install 'nip-run[server]'"


# Help texts of options that `server` has, too.
DATABASE_HELP = (
    "records in PostgreSQL, such as postgresql+psycopg://USER@HOST/NAME (password from PGPASSWORD or ~/.pgpass); "
    "default: SQLite in DIR"
)

BLOBS_HELP = "files in an object store, such as s3://BUCKET/PREFIX (keys from AWS_... variables); default: in DIR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "folder",
        type=Path,
        metavar="DIR",
        help="the server's folder: its database, files and uploads; created if missing",
    )
    add("--host", default="127.0.0.1", metavar="HOST", help="its address; default: 127.0.0.1, only this machine")
    add("--port", type=port, default=8080, metavar="N", help="port to listen on; default: 8080; 0: a free port")
    add("--database", metavar="URL", help=DATABASE_HELP)
    add("--blobs", metavar="URL", help=BLOBS_HELP)
    add(
        "--behind-proxy",
        action="append",
        default=[],
        metavar="NETWORK",
        help="network of a reverse proxy that terminates TLS, such as 127.0.0.1 or 10.0.0.0/8; repeatable",
    )
    add(
        "--without-tls",
        action="store_true",
        help="accept other machines without TLS, although anybody on the network can read tokens",
    )
    _add_limits(parser)
    add("--address", metavar="URL", help="public address, used in links, such as https://registry.example.org")
    add(
        "--import",
        dest="import_releases",
        action="store_true",
        help="first import the releases that `publish --to DIR` wrote; creates missing accounts of owners",
    )
    add(
        "--rebuild",
        action="store_true",
        help="do not serve; check every release, and build the leaderboards again at the next start",
    )
    add("--collect", action="store_true", help="do not serve; remove files that belong to no release")


def _add_limits(parser: argparse.ArgumentParser) -> None:
    """Add the options that limit the use of the server."""
    add = parser.add_argument
    add(
        "--rate",
        type=float,
        default=100.0,
        metavar="N",
        help="requests per second for each account or address, with bursts of 20 s; default: 100; 0: no limit",
    )
    add(
        "--connections",
        type=int,
        default=512,
        metavar="N",
        help="maximum number of connections; idle ones are closed first; default: 512",
    )
    add(
        "--quota",
        type=float,
        default=64.0,
        metavar="GIB",
        help="storage per account, including uploads; equal files count once; default: 64; 0: no limit",
    )
    add(
        "--check-seconds",
        type=float,
        default=300.0,
        metavar="N",
        help="time limit for the check of one upload; default: 300",
    )
    add(
        "--check-memory",
        type=int,
        default=2_048,
        metavar="MIB",
        help="memory limit for the check of one upload; default: 2048",
    )


def execute(args: argparse.Namespace) -> int:
    _check_limits(args)
    try:
        from runner.server.settings import Settings
        from runner.server.web.serving import serve
    except ImportError as error:
        raise UsageError(MISSING_PACKAGES.format(error)) from error
    settings = Settings(
        folder=args.folder, database=args.database, blobs=args.blobs, proxies=tuple(args.behind_proxy), rate=args.rate,
        connections=args.connections, check_seconds=args.check_seconds, check_bytes=args.check_memory << 20,
        account_bytes=int(args.quota * (1 << 30)),
    )  # fmt: skip
    if args.import_releases:
        _import_releases(settings, args)
    if args.rebuild or args.collect:
        return _rebuild_or_collect(settings, args)
    serve(
        settings, args.host, args.port, partial(_show_address, args), address=args.address,
        without_tls=args.without_tls, imported=args.import_releases,
    )  # fmt: skip
    return ExitCode.DONE


def _check_limits(args: argparse.Namespace) -> None:
    """Check the options of `_add_limits`.

    Raises:
        UsageError: a limit is out of its range.
    """
    if not args.rate >= 0:
        raise UsageError(f"--rate {args.rate}: requests per second must be 0 or more; 0 means no limit")
    if not 0 <= args.quota < MAX_QUOTA:
        raise UsageError(f"--quota {args.quota}: GiB per account must be 0 or more; 0 means no limit")
    if args.connections < 1:
        raise UsageError(f"--connections {args.connections}: the number of connections must be at least 1")
    if not 0 < args.check_seconds < math.inf or args.check_memory < 1:
        raise UsageError("--check-seconds and --check-memory must be numbers greater than 0")


def _show_address(args: argparse.Namespace, public_address: str, local_address: str) -> None:
    """Print the server's address when it accepts connections."""
    if args.json:
        print_json({"address": public_address, "listening": local_address})
    else:
        say(public_address)
        if not args.quiet:
            note(f"serving {args.folder}; to create an account: nip-run server add-account {args.folder} NAME")
            note("Ctrl-C stops the server; acknowledged uploads are saved")
    sys.stdout.flush()


def _import_releases(settings: Settings, args: argparse.Namespace) -> None:
    """Import the releases that `publish --to` wrote into the folder, and print each rejected one."""
    from runner.server.folder_import import import_folder
    from runner.server.rebuild import exclusive_access

    with exclusive_access(settings):
        imported = import_folder(settings, note)
    if not args.quiet:
        note(f"{counted(imported.releases, 'release')} imported from {settings.folder}")
    if imported.problems:
        note(
            f"{counted(len(imported.problems), 'problem')}, see above: rejected releases are not served, all others are"
        )


def _rebuild_or_collect(settings: Settings, args: argparse.Namespace) -> int:
    """Run `--rebuild` and `--collect` instead of serving, and return the exit code."""
    from runner.server.rebuild import RebuildResult, exclusive_access, rebuild, remove_unused_blobs

    with exclusive_access(settings):
        result = rebuild(settings, note) if args.rebuild else RebuildResult()
        # If a release is damaged, remove nothing, so that the administrator can examine it first.
        is_collected = args.collect and not result.problems
        blob_count = remove_unused_blobs(settings) if is_collected else 0
    if args.json:
        print_json({**vars(result), "collected": blob_count})
    else:
        parts = [f"{counted(result.releases, 'release')} checked"] if args.rebuild else []
        parts += [f"{counted(blob_count, 'unused blob')} removed"] if is_collected else []
        parts += [counted(len(result.problems), "problem")] if result.problems else []
        say("; ".join(parts))
    return ExitCode.FAILED if result.problems else ExitCode.DONE
