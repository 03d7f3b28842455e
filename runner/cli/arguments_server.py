"""The arguments of the commands that run a registry for others."""

from __future__ import annotations

import argparse
from pathlib import Path

DIR = "the server's folder: its database, files and uploads; made if it is not there"
DATABASE = (
    "records in PostgreSQL, such as postgresql+psycopg://USER@HOST/NAME (password from PGPASSWORD or ~/.pgpass); "
    "default: SQLite in DIR"
)
BLOBS = "files in an object store, such as s3://BUCKET/PREFIX (keys from AWS_... variables); default: in DIR"


ACTIONS = {
    "accounts": "list accounts and organisations",
    "add-account": "NAME...: make accounts",
    "add-organisation": "NAME OWNER...: make an organisation that these accounts own",
    "add-member": "ORGANISATION ACCOUNT...: let accounts publish as it; --owner: and say who else does",
    "remove-member": "ORGANISATION ACCOUNT...: no longer",
    "disable": "NAME...: their tokens are taken no more; what they published stays",
    "enable": "NAME...: they are taken again",
    "tokens": "[ACCOUNT]: list tokens, without their secrets",
    "add-token": "ACCOUNT: make a token, which is told this once; --scope, --days, --label",
    "revoke-token": "ID...: the part of a token between nip_ and the second _",
    "hide": "KIND/OWNER/NAME@VERSION...: seen by its owner alone from now on; --why",
    "show": "KIND/OWNER/NAME@VERSION...: hidden ones are seen by all again",
    "acts": "list what was done by these commands and over the API",
    "backup": "FILE: all records, of one state, while the server runs",
    "restore": "FILE: the records of a backup, into a server that has none",
    "add-competition": "ACCOUNT FILE: score the runs on a dataset by the labels in FILE, and say what was made",
    "change-competition": "OWNER/NAME FILE: another title or limit, or a later closing",
    "relabel-competition": "OWNER/NAME FILE: labels in the place of wrong ones; all submissions are scored again",
    "withdraw-competition": "OWNER/NAME: without labels and scores from now on; --why",
    "check": "say which files of releases are missing",
}


def server(parser: argparse.ArgumentParser) -> None:
    width = max(map(len, ACTIONS))
    parser.add_argument_group("actions", "\n".join(f"{name:<{width}}  {what}" for name, what in ACTIONS.items()))
    parser.add_argument("action", metavar="ACTION", choices=tuple(ACTIONS), help="one of the actions below")
    parser.add_argument("folder", type=Path, metavar="DIR", help="the folder that `nip-run serve` has")
    parser.add_argument("names", nargs="*", metavar="NAME", help="what the action is done to")
    parser.add_argument("--database", metavar="URL", help=DATABASE)
    parser.add_argument("--blobs", metavar="URL", help=f"with check, restore: {BLOBS}")
    parser.add_argument("--owner", action="store_true", help="with add-member: as one of its owners")
    parser.add_argument(
        "--scope",
        choices=("read", "publish", "admin"),
        default="publish",
        help="with add-token: read: see what is private to the account; publish: that, and publish (default); admin: "
        "that, and hide anybody's release and read /metrics",
    )
    parser.add_argument(
        "--days",
        type=float,
        default=365.0,
        metavar="N",
        help="with add-token: until it expires; default: 365; 0: never",
    )
    parser.add_argument("--label", default="", metavar="TEXT", help="with add-token: what it is for, in the list")
    parser.add_argument(
        "--why",
        default="",
        metavar="TEXT",
        help="with hide, show, disable, and of competitions: kept in the list of acts",
    )


def serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help=DIR)
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="default: 127.0.0.1, this machine alone")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="default: 8080; 0: one that is free")
    parser.add_argument("--database", metavar="URL", help=DATABASE)
    parser.add_argument("--blobs", metavar="URL", help=BLOBS)
    parser.add_argument(
        "--behind-proxy",
        action="append",
        default=[],
        metavar="NETWORK",
        help="a reverse proxy that speaks TLS is there, such as 127.0.0.1 or 10.0.0.0/8; may be given again",
    )
    parser.add_argument(
        "--without-tls", action="store_true", help="listen to other machines though anybody on the way reads tokens"
    )
    parser.add_argument(
        "--rate", type=float, default=100.0, metavar="N",
        help="requests a second of one account or address, 20 s of them at once; default: 100; 0: any number",
    )  # fmt: skip
    parser.add_argument(
        "--connections", type=int, default=512, metavar="N", help="at once; default: 512; who says nothing gives way"
    )
    parser.add_argument(
        "--quota", type=float, default=64.0, metavar="GIB",
        help="that one account may have published and open, each file once; default: 64; 0: any number",
    )  # fmt: skip
    parser.add_argument(
        "--check-seconds", type=float, default=300.0, metavar="N", help="what the check of one publish may take; 300"
    )
    parser.add_argument(
        "--check-memory", type=int, default=2_048, metavar="MIB", help="the same of memory, in MiB; default: 2048"
    )
    parser.add_argument(
        "--address",
        metavar="URL",
        help="where others find it, such as https://registry.example.org; it stands in links",
    )
    parser.add_argument(
        "--import",
        dest="import_releases",
        action="store_true",
        help="first import the releases that `publish --to DIR` put there; owners without an account get one",
    )
    parser.add_argument(
        "--rebuild", action="store_true", help="serve nothing; make all that follows from releases again, and check it"
    )
    parser.add_argument("--collect", action="store_true", help="serve nothing; remove files that no release has")
