"""The data of a server, read for comparison: the rows of its database, and the tables of its public board."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
from sqlalchemy import Column, select

from runner.base.storage.safe_files import make_folders
from runner.server.boards.builder import BOARD_FILE
from runner.server.boards.worker import BoardWorker
from runner.server.settings import Settings
from runner.server.store.backup import TEMPORARY_TABLES
from runner.server.store.database import Database
from runner.server.store.schema import metadata


def read_tables(url: str, without: Column[Any] | None = None) -> dict[str, list[Any]]:
    """Return the sorted rows of each table that a backup has, except the log of acts and the column `without`."""
    tables = [table for table in metadata.sorted_tables if table.name not in (*TEMPORARY_TABLES, "meta", "acts")]
    with closing(Database(url)) as database, database.reading() as connection:
        return {
            table.name: sorted(
                map(tuple, connection.execute(select(*(column for column in table.columns if column is not without)))),
                key=repr,
            )
            for table in tables
        }


def build_board_tables(settings: Settings) -> dict[str, list[Any]]:
    """Build the public board of a server and return its tables (see `read_duckdb_tables`).

    The files of two builds cannot be compared byte by byte, because DuckDB gives each database a random identity.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_folders(folder)
        with closing(BoardWorker(settings)) as worker:
            worker.write(folder)
        return read_duckdb_tables(folder / BOARD_FILE)


def read_duckdb_tables(file: Path) -> dict[str, list[Any]]:
    """Return the columns of each table of a DuckDB file, followed by the rows in their stored order."""
    tables: dict[str, list[Any]] = {}
    with duckdb.connect(str(file), read_only=True) as connection:
        for (name,) in connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY ALL").fetchall():
            result = connection.execute(f'SELECT * FROM "{name}"')
            columns = [(column[0], str(column[1])) for column in result.description or ()]
            tables[name] = [columns, *result.fetchall()]
    return tables
