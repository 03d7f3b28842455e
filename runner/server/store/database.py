"""The database of a server: SQLite, or PostgreSQL, behind the same few calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
from sqlalchemy.exc import ArgumentError, DBAPIError, SQLAlchemyError

from runner.base.errors import RunError, UsageError
from runner.server.store.schema import VERSION, meta, metadata
from runner.server.store.upgrades import check_version, upgrade

_WRITES = "nip_run_writes"
_WRITER, _OWNER = 0x6E69705F72756E, 0x6E69705F72756F
"""What writers, and the one server, hold of a database in PostgreSQL."""
BUSY_SECONDS = 30.0


class Database:
    """Opened once in a process, and used by all its threads."""

    def __init__(self, url: str, *, before_upgrade: Callable[[Database, int], None] | None = None) -> None:
        """A database that is empty gets its tables; one of an earlier version is upgraded, if it may be.

        `before_upgrade` is called with its version first, and nothing is changed where that raises; None: it may not.

        Raises:
            UsageError: no database is named so.
            RunError: it cannot be reached, was made by a newer nip-run, or by an older one and may not be changed.
        """
        self._engine = _engine(url)
        self.is_sqlite = self._engine.dialect.name == "sqlite"
        self._held: Connection | None = None
        try:
            self._prepare(before_upgrade)
        except DBAPIError as error:
            self._engine.dispose()
            where = make_url(url).render_as_string(hide_password=True)
            raise RunError(f"the database {where} cannot be used: {said_by(error)}") from error
        except BaseException:
            self._engine.dispose()
            raise

    def _prepare(self, before_upgrade: Callable[[Database, int], None] | None) -> None:
        with self.reading() as connection:
            found = self.schema(connection) if inspect(connection).has_table("meta") else None
        if found == VERSION:
            return
        if found is not None:
            check_version(found, "the database")
            if before_upgrade is None:
                raise RunError(
                    f"the database has schema {found}, and this nip-run has {VERSION}: `nip-run serve` upgrades it"
                )
            before_upgrade(self, found)
        with self.writing() as connection:
            if not inspect(connection).has_table("meta"):
                metadata.create_all(connection)
                rows = [{"key": "schema", "value": str(VERSION)}, {"key": "revision", "value": "0"}]
                connection.execute(insert(meta), rows)
            elif (now := self.schema(connection)) != VERSION:
                upgrade(connection, now)

    @staticmethod
    def schema(connection: Connection) -> int:
        """The version of the tables that are there."""
        return int(connection.execute(select(meta.c.value).where(meta.c.key == "schema")).scalar_one())

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """A transaction that sees one state of the database."""
        options = {} if self.is_sqlite else {"isolation_level": "REPEATABLE READ"}
        with self._engine.connect().execution_options(**options) as connection, connection.begin():
            yield connection

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        """A transaction that is kept whole once the block has ended well; there is one at a time."""
        with self._engine.connect().execution_options(**{_WRITES: True}) as connection, connection.begin():
            if not self.is_sqlite:
                # As on SQLite, so that what is read before something is written holds until it is written.
                connection.execute(select(func.pg_advisory_xact_lock(_WRITER)))
            yield connection

    def hold(self) -> bool:
        """Be the one server of a database in PostgreSQL until it is closed; False where another is.

        One in SQLite is held by the lock on its folder.
        """
        if self.is_sqlite:
            return True
        self._held = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        return bool(self._held.execute(select(func.pg_try_advisory_lock(_OWNER))).scalar_one())

    def answers(self) -> bool:
        """Whether it can be asked."""
        try:
            with self.reading() as connection:
                return bool(connection.execute(text("SELECT 1")).scalar_one())
        except SQLAlchemyError:
            return False

    def revision(self, connection: Connection) -> int:
        """Counts the changes of what can be seen."""
        return int(connection.execute(select(meta.c.value).where(meta.c.key == "revision")).scalar_one())

    def changed(self, connection: Connection) -> None:
        """Say, within a transaction, that what can be seen changes with it."""
        following = cast(cast(meta.c.value, Integer) + 1, String)
        connection.execute(update(meta).where(meta.c.key == "revision").values(value=following))

    def close(self) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None
        self._engine.dispose()


def _engine(url: str) -> Engine:
    """Its errors, which logs have, name no values: those may be labels."""
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
    except (ArgumentError, SQLAlchemyError) as error:
        raise UsageError(f"no database is named so: {error}") from error
    raise UsageError(f"a server keeps its records in SQLite or PostgreSQL, and not in {parsed.get_backend_name()}")


def _set_up_sqlite(connection: Any, _: Any) -> None:
    connection.isolation_level = None  # this module begins transactions, and not the driver
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


_ON_DISK = ("unable to open database file", "disk I/O error", "disk is full", "readonly database", "No space left")
"""How SQLite and PostgreSQL say that their disk takes no more, or may not be written to."""


def is_full(error: DBAPIError) -> bool:
    """Whether a disk that takes no more is behind what a database says."""
    return any(words in str(error.orig) for words in _ON_DISK)


def said_by(error: DBAPIError) -> str:
    """What a database says, in words for who keeps it."""
    said = str(error.orig).strip()
    hint = "; see whether its disk is full, or its folder cannot be written, which it must be to be read, too"
    return said + hint if is_full(error) else said
