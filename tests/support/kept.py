"""What a server keeps: its records, and its public board as a file."""

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


def rows(url: str, without: Column[Any] | None = None) -> dict[str, list[Any]]:
    """All that a database has, but what is going on, the acts, and the column `without`."""
    tables = [table for table in metadata.sorted_tables if table.name not in (*TEMPORARY_TABLES, "meta", "acts")]
    with closing(Database(url)) as database, database.reading() as connection:
        return {
            table.name: sorted(
                map(tuple, connection.execute(select(*(each for each in table.columns if each is not without)))),
                key=repr,
            )
            for table in tables
        }


def board(settings: Settings) -> dict[str, list[Any]]:
    """Of each table of the public board's file, made now: its columns, and its rows as they stand.

    The bytes of two such files differ, as DuckDB gives each an identity of its own.
    """
    with tempfile.TemporaryDirectory() as name:
        make_folders(Path(name))
        BoardWorker(settings).write(Path(name))
        return content(Path(name) / BOARD_FILE)


def content(file: Path) -> dict[str, list[Any]]:
    """All that a DuckDB file has."""
    found: dict[str, list[Any]] = {}
    with duckdb.connect(str(file), read_only=True) as connection:
        for (table,) in connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY ALL").fetchall():
            told = connection.execute(f'SELECT * FROM "{table}"')
            columns = [(column[0], str(column[1])) for column in told.description or ()]
            found[table] = [columns, *told.fetchall()]
    return found
