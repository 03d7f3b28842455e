"""Serve a registry over HTTP.

Examples:
  nip-run serve registry
  nip-run serve registry --port 0
  nip-run serve registry --address https://registry.example.org
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.exit_codes import ExitCode
from runner.base.text import counted
from runner.cli.arguments import port
from runner.cli.terminal.output import note, print_json, say

if TYPE_CHECKING:
    from runner.server.settings import Settings

MAX_QUOTA = 1 << 30
NEEDS = "a server needs packages of its own ({}); pip install 'nip-run[server]'"


DIR = "the server's folder: its database, files and uploads; made if it is not there"

DATABASE = (
    "records in PostgreSQL, such as postgresql+psycopg://USER@HOST/NAME (password from PGPASSWORD or ~/.pgpass); "
    "default: SQLite in DIR"
)

BLOBS = "files in an object store, such as s3://BUCKET/PREFIX (keys from AWS_... variables); default: in DIR"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", type=Path, metavar="DIR", help=DIR)
    add("--host", default="127.0.0.1", metavar="HOST", help="default: 127.0.0.1, only this machine")
    add("--port", type=port, default=8080, metavar="N", help="default: 8080; 0: a free port")
    add("--database", metavar="URL", help=DATABASE)
    add("--blobs", metavar="URL", help=BLOBS)
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
        help="storage per account, published and in upload, each file once; default: 64; 0: no limit",
    )
    add(
        "--check-seconds",
        type=float,
        default=300.0,
        metavar="N",
        help="time limit for the check of one publish; default: 300",
    )
    add(
        "--check-memory",
        type=int,
        default=2_048,
        metavar="MIB",
        help="memory limit for the check of one publish; default: 2048",
    )
    add("--address", metavar="URL", help="public address, used in links, such as https://registry.example.org")
    add(
        "--import",
        dest="import_releases",
        action="store_true",
        help="first import the releases that `publish --to DIR` wrote; creates missing accounts of owners",
    )
    add("--rebuild", action="store_true", help="do not serve; rebuild and check everything derived from releases")
    add("--collect", action="store_true", help="do not serve; remove files that belong to no release")


def execute(args: argparse.Namespace) -> int:
    from runner.base.errors import UsageError

    if not args.rate >= 0:
        raise UsageError(f"--rate {args.rate}: requests per second must be 0 or more; 0 means no limit")
    if not 0 <= args.quota < MAX_QUOTA:
        raise UsageError(f"--quota {args.quota}: GiB per account must be 0 or more; 0 means no limit")
    if args.connections < 1:
        raise UsageError(f"--connections {args.connections}: must be at least 1")
    if not args.check_seconds > 0 or args.check_memory < 1:
        raise UsageError("--check-seconds and --check-memory: both must be greater than 0")
    try:
        from runner.server.settings import Settings
        from runner.server.web.serving import serve
    except ImportError as error:
        raise UsageError(NEEDS.format(error)) from error
    settings = Settings(
        folder=args.folder, database=args.database, blobs=args.blobs, proxies=tuple(args.behind_proxy), rate=args.rate,
        connections=args.connections, check_seconds=args.check_seconds, check_bytes=args.check_memory << 20,
        account_bytes=int(args.quota * (1 << 30)),
    )  # fmt: skip

    if args.import_releases:
        _import_releases(settings, args)
    if args.rebuild or args.collect:
        return _made_again(settings, args)

    def tell(address: str, listening: str) -> None:
        if args.json:
            print_json({"address": address, "listening": listening})
        else:
            say(address)
            if not args.quiet:
                note(f"pages and API of {args.folder}; an account: nip-run server add-account {args.folder} NAME")
                note("Ctrl-C ends it; what was acknowledged stays")
        sys.stdout.flush()

    serve(
        settings,
        args.host,
        args.port,
        tell,
        address=args.address,
        without_tls=args.without_tls,
        imported=args.import_releases,
    )
    return ExitCode.DONE


def _import_releases(settings: Settings, args: argparse.Namespace) -> None:
    """Import what `publish --to` put into the folder, before it is served; what is refused is named."""
    from runner.server.folder_import import import_folder
    from runner.server.rebuild import exclusive_access

    with exclusive_access(settings):
        imported = import_folder(settings, note)
    if not args.quiet:
        note(f"{counted(imported.releases, 'release')} imported from {settings.folder}")
    if imported.problems:
        note(
            f"{counted(len(imported.problems), 'problem')}, see above: what is refused is not shown; the rest is served"
        )


def _made_again(settings: Settings, args: argparse.Namespace) -> int:
    """`--rebuild` and `--collect`: nothing is served."""
    from runner.server.rebuild import RebuildResult, exclusive_access, rebuild, remove_unused_blobs

    with exclusive_access(settings):
        found = rebuild(settings, note) if args.rebuild else RebuildResult()
        # What is damaged is looked into by a person before anything goes.
        gone = remove_unused_blobs(settings) if args.collect and not found.problems else 0
    if args.json:
        print_json({**vars(found), "collected": gone})
    else:
        said = f"{counted(found.releases, 'release')} looked at, {found.changed:,} made again otherwise"
        parts = [said] if args.rebuild else []
        parts += [f"{counted(gone, 'blob')} of nobody removed"] if args.collect and not found.problems else []
        say("; ".join([*parts, *([f"{counted(len(found.problems), 'problem')}"] if found.problems else [])]))
    return ExitCode.FAILED if found.problems else ExitCode.DONE
