"""The database of a server: SQLite, or PostgreSQL, behind the same few calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, insert, inspect, select, update
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ArgumentError, OperationalError, SQLAlchemyError

from runner.errors import RunError, UsageError
from runner.server.schema import VERSION, meta, metadata

_WRITES = "nip_run_writes"
BUSY_SECONDS = 30.0


class Database:
    """Opened once in a process, and used by all its threads."""

    def __init__(self, url: str) -> None:
        """Raises:
        UsageError: no database is named so.
        RunError: it cannot be reached, or was made by a newer nip-run.
        """
        self._engine = _engine(url)
        try:
            self._prepare()
        except OperationalError as error:
            where = make_url(url).render_as_string(hide_password=True)
            raise RunError(f"the database {where} cannot be used: {str(error.orig).strip()}") from error

    def _prepare(self) -> None:
        with self.writing() as connection:
            if not inspect(connection).has_table("meta"):
                metadata.create_all(connection)
                connection.execute(
                    insert(meta), [{"key": "schema", "value": str(VERSION)}, {"key": "revision", "value": "0"}]
                )
            found = int(connection.execute(select(meta.c.value).where(meta.c.key == "schema")).scalar_one())
        if found != VERSION:
            raise RunError(f"the database has schema {found}, and this nip-run has {VERSION}; upgrade nip-run")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        with self._engine.begin() as connection:
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is kept whole once the block has ended well; on SQLite there is one at a time."""
        with self._engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
            yield connection

    def revision(self, connection: Connection) -> int:
        """Counts the changes of what can be seen."""
        return int(connection.execute(select(meta.c.value).where(meta.c.key == "revision")).scalar_one())

    def changed(self, connection: Connection) -> None:
        """Say, within a transaction, that what can be seen changes with it."""
        query = select(meta.c.value).where(meta.c.key == "revision")
        found = int(connection.execute(query.with_for_update()).scalar_one())  # two at once count one after the other
        connection.execute(update(meta).where(meta.c.key == "revision").values(value=str(found + 1)))

    def close(self) -> None:
        self._engine.dispose()


def _engine(url: str) -> Engine:
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            engine = create_engine(parsed, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False})
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        if parsed.get_backend_name() == "postgresql":
            return create_engine(parsed, pool_pre_ping=True, pool_size=10, max_overflow=20)
    except (ArgumentError, SQLAlchemyError, ImportError) as error:
        raise UsageError(f"no database is named so: {error}") from error
    raise UsageError(f"a server keeps its records in SQLite or PostgreSQL, and not in {parsed.get_backend_name()}")


def _set_up_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # this module begins transactions, and not the driver
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")
