"""Backup and restore of a server's records: one file, of one state, made while the server runs.

The file is gzip of lines of JSON: what it is, a line for each row of each table, and at its end how many there were and
the hash of them all. What was published itself is in the blobs, which never change: they are copied as files are, after
the records, so that all that the records name is in the copy.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import MetaData, Table, func, insert, select, text, update
from sqlalchemy.exc import DBAPIError, OperationalError

from runner.base.errors import ReleaseError, RunError, UsageError
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.safe_files import create, open_to_read
from runner.server.store.blobs import Blobs
from runner.server.store.database import Database, said_by
from runner.server.store.schema import files, meta, metadata
from runner.server.store.upgrades import PASSING, check_version, upgraded_row

FORMAT = "nip-run server backup 1"
_MOST_LINE = 64 << 20
_AT_ONCE = 500


def back_up(database: Database, file: Path, schema: int | None = None) -> dict[str, int]:
    """Write a file that must not be there yet; returns how many rows of each table it has.

    With `schema`, of a database that has this earlier one.

    Raises:
        UsageError: the file is there.
        RunError: it cannot be written.
    """
    if file.exists():
        raise UsageError(f"{file} is there already; a backup replaces none")
    beside = file.with_name(f".{file.name}.part")
    counts: Counter[str] = Counter()
    hashed = hashlib.sha256()
    try:
        with create(beside) as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as packed:
            os.fchmod(raw.fileno(), 0o600)  # who is in which organisation, and hashes of tokens
            for table, line in _lines(database, schema):
                counts[table] += table != ""
                hashed.update(line)
                packed.write(line)
            end = {"rows": sum(counts.values()), "sha256": hashed.hexdigest()}
            packed.write(orjson.dumps(end, option=orjson.OPT_APPEND_NEWLINE))
        with open_to_read(beside) as written:
            os.fsync(written.fileno())
        beside.rename(file)
        fsync_dir(file.absolute().parent)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise RunError(f"the backup {file} cannot be written: {error.strerror or error}") from error
    except DBAPIError as error:
        beside.unlink(missing_ok=True)
        raise RunError(f"the backup {file} cannot be written, as the database says: {said_by(error)}") from error
    return {table: count for table, count in counts.items() if table}


def _lines(database: Database, schema: int | None) -> Iterator[tuple[str, bytes]]:
    """Each line with the table that it is of; "" for the first."""
    with database.reading() as connection:
        there = metadata
        if schema is not None:  # its tables, as they are
            there = MetaData()
            there.reflect(connection)
        version = schema or database.schema(connection)
        head = {"format": FORMAT, "schema": version, "revision": database.revision(connection)}
        yield "", orjson.dumps(head, option=orjson.OPT_APPEND_NEWLINE)
        for table in there.sorted_tables:
            if table.name in PASSING or table.name == meta.name:
                continue
            for row in connection.execute(select(table).order_by(*table.primary_key.columns)).mappings():
                said = {"table": str(table.name), "row": {str(name): value for name, value in row.items()}}
                yield str(table.name), orjson.dumps(said, option=orjson.OPT_APPEND_NEWLINE)


def restore(database: Database, file: Path) -> dict[str, int]:
    """Put what a backup has into a database that has nothing; all of it, or none. Returns how many rows of each table.

    Raises:
        UsageError: the database has something already.
        RunError: the file is damaged, is no backup, or was made by a newer nip-run; or the database takes no more.
    """
    try:
        return _restored(database, file)
    except OperationalError as error:  # a full or read-only disk, or a database that is gone
        raise RunError(f"the backup {file} cannot be restored, and nothing of it is: {said_by(error)}") from error
    except DBAPIError as error:
        raise RunError(f"the backup {file} is damaged: {str(error.orig).strip()}") from error


def _restored(database: Database, file: Path) -> dict[str, int]:
    counts: Counter[str] = Counter()
    with database.writing() as connection:
        for table in metadata.sorted_tables:
            if table.name != meta.name and connection.execute(select(func.count()).select_from(table)).scalar_one():
                raise UsageError("the server has records already; a backup is restored into a new one")
        waiting: list[dict[str, Any]] = []
        of = ""
        for table_name, row in _rows(file):
            if table_name == "":
                connection.execute(update(meta).where(meta.c.key == "revision").values(value=str(row["revision"])))
                continue
            if (table_name != of or len(waiting) >= _AT_ONCE) and waiting:
                connection.execute(insert(metadata.tables[of]), waiting)
                waiting = []
            of = table_name
            waiting.append(row)
            counts[table_name] += 1
        if waiting:
            connection.execute(insert(metadata.tables[of]), waiting)
        if not database.is_sqlite:
            for table in metadata.sorted_tables:
                _count_on(connection, table)
    return dict(counts)


def _count_on(connection: Any, table: Table) -> None:
    """Have PostgreSQL number new rows after those that were put in with their numbers."""
    column = table.autoincrement_column
    if column is None or column.foreign_keys:
        return
    most = connection.execute(select(func.max(column))).scalar()
    if most is not None:
        sequence = {"table": table.name, "column": column.name, "most": most}
        connection.execute(text("SELECT setval(pg_get_serial_sequence(:table, :column), :most)"), sequence)


def _rows(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The first line, under the name "", and each row with the name of its table, as this version has it."""
    damaged = f"the backup {file} is damaged"
    hashed, rows, schema = hashlib.sha256(), 0, 0
    try:
        with open_to_read(file) as raw, gzip.GzipFile(fileobj=raw, mode="rb") as packed:
            while line := packed.readline(_MOST_LINE):
                said = orjson.loads(line)
                if not schema:
                    if said.get("format") != FORMAT:
                        raise RunError(f"{file} is no backup of a server; `nip-run server backup` makes one")
                    schema = int(said["schema"])
                    check_version(schema, f"the backup {file}")
                    yield "", said
                elif "table" not in said:
                    if (said["rows"], said["sha256"]) != (rows, hashed.hexdigest()) or packed.read(1):
                        raise RunError(f"{damaged}: its end says something else than what stands before it")
                    return
                else:
                    rows += 1
                    table = metadata.tables[said["table"]]
                    row = dict(upgraded_row(table.name, said["row"], schema))
                    yield table.name, {column.name: row[column.name] for column in table.columns}
                hashed.update(line)
    except OSError as error:  # gzip's own are, too
        raise RunError(f"the backup {file} cannot be read: {error.strerror or error}") from error
    except (EOFError, zlib.error, KeyError, TypeError, ValueError, AttributeError) as error:
        raise RunError(f"{damaged}: {type(error).__name__} after {rows} rows") from error
    raise RunError(f"{damaged}: it ends before its end")


def missing_blobs(database: Database, blobs: Blobs) -> list[str]:
    """The files that the records name, and that are not there."""
    with database.reading() as connection:
        named = [row.sha256 for row in connection.execute(select(files.c.sha256).distinct().order_by(files.c.sha256))]
    try:
        return [sha256 for sha256 in named if not blobs.has(sha256)]
    except ReleaseError as error:
        raise RunError(str(error)) from error
