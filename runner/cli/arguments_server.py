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


def serve(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", type=Path, metavar="DIR", help=DIR)
    parser.add_argument("--host", default="127.0.0.1", metavar="HOST", help="default: 127.0.0.1, this machine alone")
    parser.add_argument("--port", type=int, default=8080, metavar="N", help="default: 8080; 0: one that is free")
    parser.add_argument("--database", metavar="URL", help=DATABASE)
    parser.add_argument("--blobs", metavar="URL", help=BLOBS)
    parser.add_argument(
        "--address",
        metavar="URL",
        help="where others find it, such as https://registry.example.org; it stands in links",
    )
