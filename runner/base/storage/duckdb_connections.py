"""What every use of DuckDB needs: a closed connection, names that it takes as they are, and a Ctrl-C that is heard."""

from __future__ import annotations

import atexit
import hashlib
import os
import re
import shutil
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, TypeVar

from runner.base.errors import RunError
from runner.base.storage.safe_files import create, open_to_read

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

_QUERY_INTERRUPTED = "Query interrupted"
"""All that tells DuckDB's error for a Ctrl-C from others."""

_PLAIN = re.compile(r"/[^?*\[\\\x00-\x1f\ud800-\udfff]*")
"""Absolute, and without what DuckDB has a meaning of its own for (`?` begins parameters, a backslash parts folders),
or cannot even be told: bytes that are not UTF-8, which Python has as lone surrogates."""

_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "extension_directories": "['/dev/null']",  # nothing is found there, and nothing can be put there
    "python_enable_replacements": "false",  # a name in a question is a table, never a variable of this program
    "enable_external_file_cache": "false",  # what was read once is not read again
}


def connect(*, memory: str | None = None, threads: int = 1, spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """A database in memory that loads no extension.

    `memory` is the most that it takes, by default most of the machine's; what does not fit is written to the folder
    `spill`, or is an error.
    """
    import duckdb

    config: dict[str, str | bool | int | float | list[str]] = {**_CLOSED, "threads": threads}
    config["temp_directory"] = "" if spill is None else str(spill)  # by default a folder where the user happens to be
    if memory is not None:
        config["memory_limit"] = memory
    return duckdb.connect(":memory:", config=config)


_idle: ContextVar[dict[str, duckdb.DuckDBPyConnection] | None] = ContextVar("idle", default=None)
"""Within `kept_connections`: those that may be used again, by their memory."""
_MOST_IDLE = 2


@contextmanager
def kept_connections() -> Iterator[None]:
    """For as long as the block goes on, what is lent is used again: for whoever reads many small files."""
    kept: dict[str, duckdb.DuckDBPyConnection] = {}
    token = _idle.set(kept)
    try:
        yield
    finally:
        _idle.reset(token)
        for connection in kept.values():
            connection.close()


@contextmanager
def lent(memory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """What `connect` makes, with one thread; within `kept_connections` used again, without anything of its last user.

    To make one takes longer than what a small file is read or written in. The block is one transaction, which is taken
    back at its end with all that was made in it, and no setting can be changed in it.
    """
    idle = _idle.get()
    connection = None if idle is None else idle.pop(memory, None)
    if connection is None:
        connection = connect(memory=memory)
        connection.execute("SET lock_configuration = true")
    try:
        connection.begin()
        yield connection
        connection.rollback()
        is_as_made = idle is not None and connection.execute(_LEFT).fetchone() == (0,)
    except BaseException:
        connection.close()
        raise
    if idle is not None and is_as_made and memory not in idle and len(idle) < _MOST_IDLE:
        idle[memory] = connection
    else:
        connection.close()


_LEFT = (
    "SELECT (SELECT count(*) FROM duckdb_variables()) + (SELECT count(*) FROM duckdb_prepared_statements()) "
    "+ (current_setting('search_path') <> '')::INTEGER"
)

TABLE_MEMORY = "512MB"


def read_only_table(name: str, file: Path, columns: Mapping[str, str]) -> duckdb.DuckDBPyRelation:
    """A Parquet file as a lazy relation, on a connection of its own that can read no other file, and write none.

    It has these columns, by name and type: one that the file lacks, as those of earlier versions do, is null.
    The relation, and what is made of it, keep the connection. What it needs above its memory stands in a folder that
    is gone when the process ends.

    Raises:
        RunError: the file cannot be read.
    """
    import duckdb

    path = duckdb_pattern(file)
    connection = connect(memory=TABLE_MEMORY, threads=2, spill=process_spill())
    try:
        none = ", ".join(f"NULL::{kind} AS {column}" for column, kind in columns.items())
        quoted = _quoted(path)
        connection.execute(
            f"CREATE VIEW {name} AS (SELECT {none} LIMIT 0) UNION ALL BY NAME "
            f"SELECT * FROM read_parquet({quoted}, hive_partitioning=false); "
            f"SET allowed_paths=[{quoted}]; SET enable_external_access=false; SET lock_configuration=true"
        )
        return connection.view(name)
    except duckdb.Error as error:
        raise RunError(f"cannot read {file}: {str(error).splitlines()[0]}") from error


def process_spill() -> Path:
    """A folder that is gone when the process ends, for what a relation needs beside its memory."""
    return _place_for_links(Path())


def duckdb_pattern(path: Path) -> str:
    """A path as DuckDB's readers and writers want it: they take names for patterns, and beginnings for protocols.

    Where its own name will not do, that of a link to it.

    Raises:
        RunError: there is no place for a link.
    """
    absolute = path.absolute()
    if _PLAIN.fullmatch(str(absolute)):
        return str(absolute)
    link = _place_for_links(path) / (hashlib.sha256(os.fsencode(absolute)).hexdigest()[:32] + path.suffix)
    if not _PLAIN.fullmatch(str(link)):
        link = link.with_suffix("")
    try:
        with suppress(FileExistsError):
            link.symlink_to(absolute)
    except OSError as error:
        raise RunError(f"cannot link to {path} from {link}: {error.strerror}") from error
    return str(link)


def duckdb_literal(path: Path) -> str:
    """A file that is to be made, as a text in SQL; its own name is one of ours, its folder's may be any.

    Raises:
        RunError: see `duckdb_pattern`.
    """
    return _quoted(f"{duckdb_pattern(path.parent)}/{path.name}")


def _quoted(text: str) -> str:
    """A text in SQL."""
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def database_at(path: Path) -> Iterator[str]:
    """The file of a database, to be read, as a text in SQL: itself, or a copy, since DuckDB sees through a link.

    Raises:
        RunError: there is no place for a copy.
    """
    if has_plain_name(path):
        yield duckdb_literal(path)
        return
    with _temporary_folder(path) as folder:
        database = folder / "database.duckdb"
        with open_to_read(path) as original, create(database) as copy:
            shutil.copyfileobj(original, copy, 1 << 20)
        yield duckdb_literal(database)


@contextmanager
def work_beside(path: Path, ending: str) -> Iterator[Path]:
    """Where a database is made that is then put in a path's place: beside it, or where names are plain."""
    if has_plain_name(path):
        yield path.with_name(path.name + ending)
        return
    with _temporary_folder(path) as folder:
        yield folder / ("database" + ending)


def has_plain_name(path: Path) -> bool:
    """Whether DuckDB can open a database there: it follows links to the name behind them."""
    return _PLAIN.fullmatch(os.path.realpath(path)) is not None


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    try:
        made = TemporaryDirectory(prefix="nip-run-")
    except OSError as error:
        raise _no_place_for(path) from error
    with made as name:
        if not has_plain_name(Path(name)):
            raise _no_place_for(path)
        yield Path(name)


def _place_for_links(path: Path) -> Path:
    try:
        folder = Path(_links().name)
    except OSError as error:
        raise _no_place_for(path) from error
    if not _PLAIN.fullmatch(str(folder)):
        raise _no_place_for(path)
    return folder


@cache
def _links() -> TemporaryDirectory[str]:
    """A folder of links that is gone when the process ends."""
    made = TemporaryDirectory(prefix="nip-run-")
    atexit.register(made.cleanup)  # left to itself it goes as well, but warns of that
    return made


def _no_place_for(path: Path) -> RunError:
    return RunError(
        f"DuckDB cannot open {path} by this name, and there is no temporary folder with a plain name; set TMPDIR to "
        "one, or rename the folder"
    )


def of_the_machine(error: BaseException) -> bool:
    """Whether an error is one of DuckDB's that does not follow from the question and its data, as of a full disk."""
    import duckdb

    return isinstance(error, duckdb.Error) and not isinstance(error, (duckdb.DataError, duckdb.ProgrammingError))


@contextmanager
def interruptible_queries() -> Iterator[None]:
    """Ctrl-C in a query as `KeyboardInterrupt`, as everywhere else: DuckDB makes it an error like any other."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == _QUERY_INTERRUPTED:
            raise KeyboardInterrupt from error
        raise


INTERRUPT_SECONDS = 0.05


def attended(connection: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """What a call that uses a connection returns. Ctrl-C ends it at once.

    DuckDB itself hears a signal only between tasks of the thread that asked: not while another of its threads works.
    """
    usual = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(usual):
        return call()
    returned: list[T] = []
    raised: list[BaseException] = []
    heard: list[tuple[int, FrameType | None]] = []
    done = threading.Event()  # and no `join`, which takes a thread for ended once a signal has come between

    def work() -> None:
        try:
            returned.append(call())
        except BaseException as error:  # noqa: BLE001 - it is raised again where the call was made
            raised.append(error)
        finally:
            done.set()

    # A KeyboardInterrupt could come where it is lost, or before anybody waits for the thread, whose work would go on.
    signal.signal(signal.SIGINT, lambda number, frame: heard.append((number, frame)))
    try:
        threading.Thread(target=work, name="question").start()
        while not done.wait(INTERRUPT_SECONDS):
            if heard:  # again and again: DuckDB forgets an interrupt that comes before the call has begun to work
                connection.interrupt()
    finally:
        signal.signal(signal.SIGINT, usual)
    if heard:
        usual(*heard[0])
    if raised:
        raise raised[0]
    return returned[0]
