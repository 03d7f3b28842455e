"""The database of a server: SQLite or PostgreSQL behind one interface.

`Database` opens transactions. `runner.server.store.schema` has the tables, and other modules write the queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import (
    Connection,
    Engine,
    Integer,
    String,
    cast,
    create_engine,
    event,
    func,
    insert,
    inspect,
    select,
    text,
    update,
)
from sqlalchemy.engine import make_url
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from runner.base.errors import RunError, UsageError
from runner.server.store.schema import VERSION, meta, metadata

_WRITE_OPTION = "nip_run_writes"
"""Key of the connection option that marks a write transaction for `_begin_sqlite`."""
_WRITER_LOCK = 0x6E69705F72756E
"""Key of PostgreSQL's advisory lock that lets only one write transaction run at a time."""
_SERVER_LOCK = 0x6E69705F72756F
"""Key of PostgreSQL's advisory lock that lets only one `nip-run serve` use the database."""
BUSY_SECONDS = 30.0
"""Maximum time that a SQLite transaction waits while another one has the lock of the database."""


class Database:
    """The connections of one process to the database, shared by its threads."""

    def __init__(self, url: str) -> None:
        """Connect, and create the tables of an empty database.

        Raises:
            UsageError: the URL does not name a supported database.
            RunError: the database cannot be reached, or has the schema of an incompatible version.
        """
        self._engine = _create_engine(url)
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        self._server_lock_connection: Connection | None = None
        try:
            self._create_missing_tables()
        except DBAPIError as error:
            self._engine.dispose()
            shown_url = make_url(url).render_as_string(hide_password=True)
            message = f"cannot use the database {shown_url}: {describe_error(error)}"
            raise RunError(f"{message}; check that the database runs and that --database is correct") from error
        except BaseException:
            self._engine.dispose()
            raise

    def _create_missing_tables(self) -> None:
        """Create the tables of an empty database, and check the schema version of an existing one."""
        with self.reading() as connection:
            if inspect(connection).has_table("meta"):
                check_version(self.schema_version(connection), "the database")
                return
        with self.writing() as connection:  # check again: another process may have created the tables
            if not inspect(connection).has_table("meta"):
                metadata.create_all(connection)
                rows = [{"key": "schema", "value": str(VERSION)}, {"key": "revision", "value": "0"}]
                connection.execute(insert(meta), rows)

    @staticmethod
    def schema_version(connection: Connection) -> int:
        """Return the schema version of the database."""
        return int(connection.execute(select(meta.c.value).where(meta.c.key == "schema")).scalar_one())

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a read transaction, which sees one consistent state of the database."""
        options = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """Open a write transaction. It commits at the end of the `with` block if no error occurs.

        Only one write transaction runs at a time.
        """
        with self._engine.connect().execution_options(**{_WRITE_OPTION: True}) as connection, connection.begin():
            if not self.is_sqlite:
                # Like SQLite's BEGIN IMMEDIATE: no other writer changes the data between a read and a write.
                connection.execute(select(func.pg_advisory_xact_lock(_WRITER_LOCK)))
            yield connection

    def lock_for_server(self) -> bool:
        """Lock a PostgreSQL database against other servers until `close`; return False if another server has the lock.

        SQLite needs no such lock, because the server's folder is locked.
        """
        if self.is_sqlite:
            return True
        self._server_lock_connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        return bool(self._server_lock_connection.execute(select(func.pg_try_advisory_lock(_SERVER_LOCK))).scalar_one())

    def is_reachable(self) -> bool:
        """Return whether the database answers a query."""
        try:
            with self.reading() as connection:
                return bool(connection.execute(text("SELECT 1")).scalar_one())
        except SQLAlchemyError:
            return False

    def revision(self, connection: Connection) -> int:
        """Return the revision: a counter that increases when data visible to readers changes. Caches compare it."""
        return int(connection.execute(select(meta.c.value).where(meta.c.key == "revision")).scalar_one())

    def increment_revision(self, connection: Connection) -> None:
        """Increment the revision. Call it in each transaction that changes data visible to readers."""
        next_revision = cast(cast(meta.c.value, Integer) + 1, String)
        connection.execute(update(meta).where(meta.c.key == "revision").values(value=next_revision))

    def close(self) -> None:
        if self._server_lock_connection is not None:
            self._server_lock_connection.close()
            self._server_lock_connection = None
        self._engine.dispose()


def check_version(version: int, source: str) -> None:
    """Raise RunError if this version of nip-run cannot read schema `version`; `source` is the file or database."""
    if version > VERSION:
        raise RunError(f"{source} has schema {version}, which is newer than this version of nip-run; upgrade nip-run")
    if version != VERSION:
        problem = f"{source} has the unknown schema {version}: it is damaged, or from an unreleased version of nip-run"
        raise RunError(f"{problem}; restore a backup")


def _create_engine(url: str) -> Engine:
    """Create an engine. The option `hide_parameters` keeps SQL values, such as labels, out of errors and logs."""
    try:
        parsed = make_url(url)
        if parsed.get_backend_name() == "sqlite":
            engine = create_engine(
                parsed, connect_args={"timeout": BUSY_SECONDS, "check_same_thread": False}, hide_parameters=True
            )
            event.listen(engine, "connect", _set_up_sqlite)
            event.listen(engine, "begin", _begin_sqlite)
            return engine
        if parsed.get_backend_name() == "postgresql":
            return create_engine(parsed, pool_pre_ping=True, pool_size=10, max_overflow=20, hide_parameters=True)
    except ImportError as error:
        raise UsageError(f"PostgreSQL needs its driver ({error}); pip install 'nip-run[postgresql]'") from error
    except SQLAlchemyError as error:
        raise UsageError(f"invalid URL in --database: {error}; write postgresql+psycopg://USER@HOST/NAME") from error
    raise UsageError(
        f"--database names {parsed.get_backend_name()}, which is not supported; write "
        "postgresql+psycopg://USER@HOST/NAME, or leave out --database to use SQLite"
    )


def _set_up_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # this module begins transactions, not the driver
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITE_OPTION, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


_DISK_ERROR_TEXTS = (
    "unable to open database file",
    "disk I/O error",
    "disk is full",
    "readonly database",
    "No space left",
)
"""Texts in the errors of SQLite and PostgreSQL about a full, read-only or damaged disk."""


def is_disk_error(error: DBAPIError) -> bool:
    """Return whether the disk caused a database error: it is full, read-only or damaged."""
    return any(disk_text in str(error.orig) for disk_text in _DISK_ERROR_TEXTS)


@contextmanager
def database_errors() -> Iterator[None]:
    """Raise an error of the database in this block as a `RunError`."""
    try:
        yield
    except DBAPIError as error:
        raise RunError(f"cannot use the database of the server: {describe_error(error)}") from error


def describe_error(error: DBAPIError) -> str:
    """Return the message of a database error, with a hint if its disk is full or read-only."""
    message = str(error.orig).strip()
    hint = "; make room on the disk, or make the database's folder writable (SQLite writes there even for a query)"
    return message + hint if is_disk_error(error) else message
