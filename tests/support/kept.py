"""What a server keeps: its records, its public board as a file, and its records as earlier schemas had them."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
from sqlalchemy import MetaData, create_engine, insert, select, update

from runner.base.storage.safe_files import make_folders
from runner.server.boards.builder import FILE
from runner.server.boards.worker import BoardWorker
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import meta, metadata
from runner.server.store.upgrades import TEMPORARY_TABLES
from tests.support.paths import ROOT

_SCHEMAS = ROOT / "tests" / "fixtures" / "server"


Columns = Mapping[str, Sequence[str]]
"""Of tables by name."""


def rows(url: str, only: Columns | None = None) -> dict[str, list[Any]]:
    """All that a database has, but what is going on, and the acts; or of these columns alone."""
    with closing(Database(url)) as database, database.reading() as connection:
        tables = [table for table in metadata.sorted_tables if table.name not in (*TEMPORARY_TABLES, "meta", "acts")]
        found = {}
        for table in tables:
            names = [column.name for column in table.columns] if only is None else only.get(table.name, ())
            told = connection.execute(select(*(table.c[name] for name in names))) if names else ()
            found[table.name] = sorted(map(tuple, told), key=repr)
        return found


def board(settings: Settings) -> dict[str, list[Any]]:
    """Of each table of the public board's file, made now: its columns, and its rows as they stand.

    The bytes of two such files differ, as DuckDB gives each an identity of its own.
    """
    with tempfile.TemporaryDirectory() as name:
        make_folders(Path(name))
        BoardWorker(settings).write(Path(name))
        return content(Path(name) / FILE)


def content(file: Path) -> dict[str, list[Any]]:
    """All that a DuckDB file has."""
    found: dict[str, list[Any]] = {}
    with duckdb.connect(str(file), read_only=True) as connection:
        for (table,) in connection.execute("SELECT table_name FROM duckdb_tables() ORDER BY ALL").fetchall():
            told = connection.execute(f'SELECT * FROM "{table}"')
            columns = [(column[0], str(column[1])) for column in told.description or ()]
            found[table] = [columns, *told.fetchall()]
    return found


def made_as_schema(version: int, source: str, url: str) -> Columns:
    """Make a database as an earlier schema had it, with all of another's rows that it has a place for.

    `url` names one that is empty, in SQLite or PostgreSQL. Returns what the earlier schema has.
    """
    engine = create_engine(url)
    is_sqlite = engine.dialect.name == "sqlite"
    script = (_SCHEMAS / f"schema_{version}{'' if is_sqlite else '.postgresql'}.sql").read_text("utf-8")
    with closing(Database(source)) as database, database.reading() as given, engine.begin() as connection:
        for statement in script.split(";\n"):
            if statement.strip().startswith("CREATE"):
                connection.exec_driver_sql(statement)
        old = MetaData()
        old.reflect(connection)
        there = {name: [column.name for column in table.columns] for name, table in old.tables.items()}
        for table in metadata.sorted_tables:
            if table.name in there and table.name not in TEMPORARY_TABLES:
                names = there[table.name]
                told = [dict(row) for row in given.execute(select(*(table.c[name] for name in names))).mappings()]
                if told:
                    connection.execute(insert(old.tables[table.name]), told)
                if not is_sqlite and "id" in names and told and isinstance(told[0]["id"], int):  # numbers go on
                    most = f"SELECT setval(pg_get_serial_sequence('{table.name}', 'id'), max(id)) FROM {table.name}"
                    connection.exec_driver_sql(most)
        connection.execute(update(meta).where(meta.c.key == "schema").values(value=str(version)))
    engine.dispose()
    return there
