"""What a server keeps: its records, its public board as a file, and its records as the first schema had them."""

from __future__ import annotations

import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import duckdb
from sqlalchemy import MetaData, create_engine, insert, select, update

from runner.server.boards.made import FILE
from runner.server.boards.worker import Worker
from runner.server.settings import Settings
from runner.server.store.database import Database
from runner.server.store.schema import meta, metadata
from runner.server.store.upgrades import PASSING
from runner.storage.files import make_folders
from tests.support.paths import ROOT

_SCHEMA_1 = ROOT / "tests" / "fixtures" / "server"


def rows(url: str) -> dict[str, list[Any]]:
    """All that a database has, but what is going on, and the acts."""
    with closing(Database(url)) as database, database.reading() as connection:
        tables = [table for table in metadata.sorted_tables if table.name not in (*PASSING, "meta", "acts")]
        return {table.name: sorted(map(tuple, connection.execute(table.select()))) for table in tables}


def board(settings: Settings) -> dict[str, list[Any]]:
    """Of each table of the public board's file, made now: its columns, and its rows as they stand.

    The bytes of two such files differ, as DuckDB gives each an identity of its own.
    """
    with tempfile.TemporaryDirectory() as name:
        make_folders(Path(name))
        Worker(settings).write(Path(name))
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


def made_as_schema_1(source: str, url: str) -> None:
    """Make a database as the first schema had it, with all of another's rows that it has a place for.

    `url` names one that is empty, in SQLite or PostgreSQL.
    """
    engine = create_engine(url)
    kind = "" if engine.dialect.name == "sqlite" else ".postgresql"
    statements = (_SCHEMA_1 / f"schema_1{kind}.sql").read_text("utf-8").split(";\n")
    with closing(Database(source)) as database, database.reading() as given, engine.begin() as connection:
        for statement in statements:
            if statement.strip().startswith("CREATE"):
                connection.exec_driver_sql(statement)
        old = MetaData()
        old.reflect(connection)
        for table in metadata.sorted_tables:
            if table.name in old.tables and table.name not in PASSING:
                names = [column.name for column in old.tables[table.name].columns]
                told = [dict(row) for row in given.execute(select(*(table.c[name] for name in names))).mappings()]
                if told:
                    connection.execute(insert(old.tables[table.name]), told)
        connection.execute(update(meta).where(meta.c.key == "schema").values(value="1"))
        for table_name in ("accounts", "releases") if kind else ():  # numbers go on where they were
            most = f"SELECT setval(pg_get_serial_sequence('{table_name}', 'id'), max(id)) FROM {table_name}"
            connection.exec_driver_sql(most)
    engine.dispose()
