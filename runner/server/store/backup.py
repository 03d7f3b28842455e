"""Backs up a server's database into one file, also while the server runs, and restores backups.

The file is gzipped JSON Lines: a header, one line for each row of each table, and a last line with the number of rows
and the hash of all previous lines. The backup does not contain blobs (the contents of files). The administrator copies
the folder of blobs after the backup. Blobs never change, so this copy has every blob that the backup refers to.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from itertools import groupby, islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import Table, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from runner.base.errors import RunError, UsageError
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.safe_files import create, open_to_read
from runner.server.store.blobs import BlobStore
from runner.server.store.database import Database, check_version, describe_error
from runner.server.store.schema import VERSION, files, meta, metadata

FORMAT = "nip-run server backup 1"
_MAX_LINE_BYTES = 64 << 20
_BATCH_ROWS = 500
"""Number of rows to insert with one statement."""
TEMPORARY_TABLES = frozenset({"browsers", "uploads"})
"""Tables that backups leave out: clients can upload again, and browsers can sign in again."""
_UNUSED_TABLE = "checks"
"""A table in older backups and databases, which nothing reads."""


def back_up(database: Database, file: Path) -> dict[str, int]:
    """Write a backup to a new file and return the number of rows of each table.

    Raises:
        UsageError: the file exists.
        RunError: the file cannot be written.
    """
    if file.exists():
        raise UsageError(f"{file} exists; choose another name for the backup, or remove the file")
    part_file = file.with_name(f".{file.name}.part")
    counts: Counter[str] = Counter()
    hasher = hashlib.sha256()
    try:
        with create(part_file) as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as compressed:
            os.fchmod(raw.fileno(), 0o600)  # the backup contains members of organizations and hashes of tokens
            for table, line in _backup_lines(database):
                counts[table] += 1
                hasher.update(line)
                compressed.write(line)
            del counts[""]  # the header
            trailer = {"rows": counts.total(), "sha256": hasher.hexdigest()}
            compressed.write(orjson.dumps(trailer, option=orjson.OPT_APPEND_NEWLINE))
        with open_to_read(part_file) as written:
            os.fsync(written.fileno())
        part_file.rename(file)
        fsync_dir(file.absolute().parent)
    except OSError as error:
        part_file.unlink(missing_ok=True)
        raise RunError(f"cannot write the backup {file}: {error.strerror or error}; choose another FILE") from error
    except DBAPIError as error:
        part_file.unlink(missing_ok=True)
        message = f"cannot write the backup {file}, because of a database error: {describe_error(error)}"
        raise RunError(message) from error
    return dict(counts)


def _backup_lines(database: Database) -> Iterator[tuple[str, bytes]]:
    """Yield pairs of a table's name and the line of one of its rows. The header comes first, with the name ""."""
    with database.reading() as connection:
        header = {"format": FORMAT, "schema": VERSION, "revision": database.revision(connection)}
        yield "", orjson.dumps(header, option=orjson.OPT_APPEND_NEWLINE)
        for table in metadata.sorted_tables:
            if table.name in TEMPORARY_TABLES or table.name == meta.name:
                continue
            for row in connection.execute(select(table).order_by(*table.primary_key.columns)).mappings():
                entry = {"table": str(table.name), "row": {str(name): value for name, value in row.items()}}
                yield str(table.name), orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE)


def restore(database: Database, file: Path) -> dict[str, int]:
    """Restore a backup into an empty database, in one transaction; return the number of rows of each table.

    Raises:
        UsageError: the database is not empty.
        RunError: the file is damaged, not a backup, or from a newer version, or the database cannot be written.
    """
    try:
        return _restore_rows(database, file)
    except OperationalError as error:  # a full or read-only disk, or a lost connection
        raise RunError(f"cannot restore the backup {file}; nothing was changed: {describe_error(error)}") from error
    except DBAPIError as error:
        raise RunError(f"the backup {file} is damaged: {str(error.orig).strip()}; restore another copy") from error


def _restore_rows(database: Database, file: Path) -> dict[str, int]:
    counts: Counter[str] = Counter()
    with database.writing() as connection:
        for table in metadata.sorted_tables:
            if table.name != meta.name and connection.execute(select(func.count()).select_from(table)).scalar_one():
                raise UsageError("the server's database is not empty; restore the backup into a new DIR or --database")
        for table_name, rows in groupby(_read_backup(file), key=itemgetter(0)):
            if table_name == "":
                _, header = next(rows)
                connection.execute(update(meta).where(meta.c.key == "revision").values(value=str(header["revision"])))
            while batch := [row for _, row in islice(rows, _BATCH_ROWS)]:
                connection.execute(insert(metadata.tables[table_name]), batch)
                counts[table_name] += len(batch)
        if not database.is_sqlite:
            for table in metadata.sorted_tables:
                _advance_sequence(connection, table)
    return dict(counts)


def _advance_sequence(connection: Any, table: Table) -> None:
    """Make PostgreSQL's next id of a table larger than all restored ids."""
    column = table.autoincrement_column
    if column is None or column.foreign_keys:
        return
    highest = connection.execute(select(func.max(column))).scalar()
    if highest is not None:
        sequence = {"table": table.name, "column": column.name, "highest": highest}
        connection.execute(text("SELECT setval(pg_get_serial_sequence(:table, :column), :highest)"), sequence)


def _read_backup(file: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """Yield pairs of a table's name and a row. The header comes first, with the name ""."""
    damage = f"the backup {file} is damaged"
    hasher, count, has_header = hashlib.sha256(), 0, False
    try:
        with open_to_read(file) as raw, gzip.GzipFile(fileobj=raw, mode="rb") as compressed:
            while line := compressed.readline(_MAX_LINE_BYTES):
                entry = orjson.loads(line)
                if not has_header:
                    if entry.get("format") != FORMAT:
                        raise RunError(f"{file} is not a server's backup; use a file of `nip-run server backup`")
                    check_version(int(entry["schema"]), f"the backup {file}")
                    has_header = True
                    yield "", entry
                elif "table" not in entry:
                    if (entry["rows"], entry["sha256"]) != (count, hasher.hexdigest()) or compressed.read(1):
                        raise RunError(f"{damage}: the checksum in its last line does not match; restore another copy")
                    return
                else:
                    count += 1
                    if entry["table"] != _UNUSED_TABLE:
                        table = metadata.tables[entry["table"]]
                        yield table.name, {column.name: entry["row"][column.name] for column in table.columns}
                hasher.update(line)
    except OSError as error:  # includes gzip.BadGzipFile
        raise RunError(f"cannot read the backup {file}: {error.strerror or error}; check the path") from error
    except (EOFError, zlib.error, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{damage}: {type(error).__name__} after {count} rows; restore another copy") from error
    raise RunError(f"{damage}: the file is truncated; restore another copy")


def find_missing_blobs(database: Database, blobs: BlobStore) -> list[str]:
    """Return the hashes of blobs that the database refers to but the blob store does not have."""
    with database.reading() as connection:
        referenced = connection.execute(select(files.c.sha256).distinct().order_by(files.c.sha256)).scalars().all()
    return [sha256 for sha256 in referenced if not blobs.has(sha256)]
