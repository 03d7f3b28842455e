"""DuckDB connections without extensions or network, paths that DuckDB takes literally, and interruptible queries.

Modules import `_duckdb`, the compiled module. The package `duckdb` adds Python functions, mainly for relations, and
importing it takes three times as long. So only functions that return relations import it; see `load_relations`.
"""

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
from functools import cache, wraps
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from runner.base.errors import RunError, os_errors_as
from runner.base.storage.safe_files import create, open_to_read

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")

_QUERY_INTERRUPTED = "Query interrupted"
"""Message of the RuntimeError that DuckDB raises after Ctrl-C. No other attribute identifies this error."""

_PLAIN_PATH = re.compile(r"/[^?*\[\\\x00-\x1f\ud800-\udfff]*")
"""An absolute path that DuckDB takes literally. It has no glob characters, no `?` (which starts parameters), no
backslash (which separates folders), and no bytes that are not UTF-8 (which Python represents as lone surrogates)."""

_CLOSED = {
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "allow_community_extensions": "false",
    "extension_directories": "['/dev/null']",  # contains no extension, and none can be installed there
    "python_enable_replacements": "false",  # a name in a query is a table, never a variable of this program
    "enable_external_file_cache": "false",  # no file is read twice
}


def connect(*, memory: str | None = None, threads: int = 1, spill: Path | None = None) -> duckdb.DuckDBPyConnection:
    """Open a database in memory that loads no extension.

    `memory` is the memory limit; the default is most of the machine's memory. A query that needs more spills data to
    the folder `spill`, or fails without one.
    """
    import _duckdb

    config: dict[str, str | bool | int | float | list[str]] = {**_CLOSED, "threads": threads}
    config["temp_directory"] = "" if spill is None else str(spill)  # DuckDB's default is below the current folder
    if memory is not None:
        config["memory_limit"] = memory
    return _duckdb.connect(":memory:", config=config)


_idle: ContextVar[dict[str, duckdb.DuckDBPyConnection] | None] = ContextVar("idle", default=None)
"""Idle connections by memory limit within `reuse_connections`; None outside of such a block."""
_MAX_IDLE = 2


@contextmanager
def reuse_connections() -> Iterator[None]:
    """Reuse the connections of `borrow_connection` within this block, for code that reads many small files."""
    connections: dict[str, duckdb.DuckDBPyConnection] = {}
    token = _idle.set(connections)
    try:
        yield
    finally:
        _idle.reset(token)
        for connection in connections.values():
            connection.close()


@contextmanager
def borrow_connection(memory: str) -> Iterator[duckdb.DuckDBPyConnection]:
    """Yield a connection with one thread. Within `reuse_connections`, this may be a connection that is idle.

    Reuse pays, since opening a connection takes longer than reading a small file. The block is one transaction that is
    rolled back at the end, and cannot change any setting. So a later block finds no traces of an earlier one.
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
        is_clean = idle is not None and connection.execute(_COUNT_LEFTOVERS).fetchone() == (0,)
    except BaseException:
        connection.close()
        raise
    if idle is not None and is_clean and memory not in idle and len(idle) < _MAX_IDLE:
        idle[memory] = connection
    else:
        connection.close()


_COUNT_LEFTOVERS = (
    "SELECT (SELECT count(*) FROM duckdb_variables()) + (SELECT count(*) FROM duckdb_prepared_statements()) "
    "+ (current_setting('search_path') <> '')::INTEGER"
)

TABLE_MEMORY = "512MB"


def read_only_table(name: str, file: Path, columns: Mapping[str, str]) -> duckdb.DuckDBPyRelation:
    """Open a Parquet file as a lazy relation, on a connection that can read no other file, and write none.

    `columns` maps column names to types. A column is null if the file lacks it, because an earlier version wrote the
    file. The relation and everything derived from it keep the connection open. Data beyond `TABLE_MEMORY` is spilled
    to a folder that is removed when the process ends.

    Raises:
        RunError: the file cannot be read.
    """
    import _duckdb

    load_relations()
    path = duckdb_pattern(file)
    connection = connect(memory=TABLE_MEMORY, threads=2, spill=process_spill())
    try:
        empty_columns = ", ".join(f"NULL::{kind} AS {column}" for column, kind in columns.items())
        quoted = _quote_text(path)
        connection.execute(
            f"CREATE VIEW {name} AS (SELECT {empty_columns} LIMIT 0) UNION ALL BY NAME "
            f"SELECT * FROM read_parquet({quoted}, hive_partitioning=false); "
            f"SET allowed_paths=[{quoted}]; SET enable_external_access=false; SET lock_configuration=true"
        )
        return connection.view(name)
    except _duckdb.Error as error:
        raise RunError(f"cannot read {file}: {str(error).splitlines()[0]}") from error


_PACKAGES = {"pandas": ("df", "to_df", "fetchdf"), "polars": ("pl",), "pyarrow": ("arrow", "to_arrow_table")}
"""The methods of relations that need a package which nip-run does not install."""


@cache
def load_relations() -> None:
    """Add the methods for relations to connections, by importing `duckdb`.

    The methods of relations are wrapped, so that they say how to install a package that they lack. A subclass would not
    do, since DuckDB cannot create objects of it.
    """
    import duckdb

    def wrap(name: str, package: str, method: Callable[..., T]) -> Callable[..., T]:
        @wraps(method)
        def call(*args: Any, **options: Any) -> T:
            try:
                return method(*args, **options)
            except (ImportError, duckdb.InvalidInputException) as error:
                if isinstance(error, ImportError) or "was not installed" in str(error):
                    raise ImportError(f".{name}() needs {package}. Install it: pip install {package}") from error
                raise

        return call

    for package, names in _PACKAGES.items():
        for name in names:
            method = getattr(duckdb.DuckDBPyRelation, name)
            setattr(duckdb.DuckDBPyRelation, name, wrap(name, package, method))


def process_spill() -> Path:
    """Return a folder for data that exceeds a relation's memory limit. It is removed when the process ends."""
    return _usable_link_folder(Path())


def duckdb_pattern(path: Path) -> str:
    """Return a path that DuckDB opens literally, and not as a glob pattern or a URL.

    The result is `path` itself, or a symbolic link to it if `path` has characters with a meaning in DuckDB.

    Raises:
        RunError: there is no usable folder for a link.
    """
    absolute = path.absolute()
    if _PLAIN_PATH.fullmatch(str(absolute)):
        return str(absolute)
    link = _usable_link_folder(path) / (hashlib.sha256(os.fsencode(absolute)).hexdigest()[:32] + path.suffix)
    if not _PLAIN_PATH.fullmatch(str(link)):
        link = link.with_suffix("")
    with os_errors_as(RunError, f"cannot link to {path} from {link}"), suppress(FileExistsError):
        link.symlink_to(absolute)
    return str(link)


def duckdb_literal(path: Path) -> str:
    """Return the path of a new file as a SQL literal. The file must have a plain name, but its folder any name.

    Raises:
        RunError: as for `duckdb_pattern`.
    """
    return _quote_text(f"{duckdb_pattern(path.parent)}/{path.name}")


def _quote_text(text: str) -> str:
    """Quote a text as a SQL literal."""
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def database_at(path: Path) -> Iterator[str]:
    """Yield the path of a database for reading, as a SQL literal.

    If the path is not plain, yield the path of a temporary copy. A link would not help, since DuckDB resolves links.

    Raises:
        RunError: there is no usable folder for a copy.
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
def temporary_database_path(path: Path, ending: str) -> Iterator[Path]:
    """Yield a temporary path for a new version of the database `path`: next to it, or in a folder with a plain name."""
    if has_plain_name(path):
        yield path.with_name(path.name + ending)
        return
    with _temporary_folder(path) as folder:
        yield folder / ("database" + ending)


def has_plain_name(path: Path) -> bool:
    """Return whether DuckDB can open a database at `path`, whose links it resolves."""
    return _PLAIN_PATH.fullmatch(os.path.realpath(path)) is not None


@contextmanager
def _temporary_folder(path: Path) -> Iterator[Path]:
    try:
        temporary_folder = TemporaryDirectory(prefix="nip-run-")
    except OSError as error:
        raise _no_usable_folder(path) from error
    with temporary_folder as name:
        if not has_plain_name(Path(name)):
            raise _no_usable_folder(path)
        yield Path(name)


def _usable_link_folder(path: Path) -> Path:
    try:
        folder = Path(_link_folder().name)
    except OSError as error:
        raise _no_usable_folder(path) from error
    if not _PLAIN_PATH.fullmatch(str(folder)):
        raise _no_usable_folder(path)
    return folder


@cache
def _link_folder() -> TemporaryDirectory[str]:
    """Return the folder of links, which is removed when the process ends."""
    folder = TemporaryDirectory(prefix="nip-run-")
    atexit.register(folder.cleanup)  # without this, Python removes the folder with a ResourceWarning
    return folder


def _no_usable_folder(path: Path) -> RunError:
    return RunError(
        f"DuckDB cannot open {path}, because of special characters in the path, and there is no temporary folder "
        "without such characters; set TMPDIR to one, or rename the folder"
    )


def is_machine_error(error: BaseException) -> bool:
    """Return whether the machine caused DuckDB's error, such as a full disk, and not the query or its data."""
    import _duckdb

    return isinstance(error, _duckdb.Error) and not isinstance(error, (_duckdb.DataError, _duckdb.ProgrammingError))


@contextmanager
def interruptible_queries() -> Iterator[None]:
    """Raise `KeyboardInterrupt` if Ctrl-C interrupts a query; DuckDB raises a `RuntimeError` instead."""
    try:
        yield
    except RuntimeError as error:
        if str(error) == _QUERY_INTERRUPTED:
            raise KeyboardInterrupt from error
        raise


INTERRUPT_SECONDS = 0.05


def run_query(connection: duckdb.DuckDBPyConnection, call: Callable[[], T]) -> T:
    """Return the result of a call that uses a connection. Ctrl-C interrupts the call at once.

    DuckDB itself notices a signal only between tasks of the calling thread, not while its other threads work.
    """
    handler = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(handler):
        return call()
    results: list[T] = []
    errors: list[BaseException] = []
    signals: list[tuple[int, FrameType | None]] = []
    done = threading.Event()  # instead of `join`, which can return early if a signal interrupts it

    def work() -> None:
        try:
            results.append(call())
        except BaseException as error:  # noqa: BLE001 - raised again in the calling thread
            errors.append(error)
        finally:
            done.set()

    # Collect signals, since a KeyboardInterrupt could come before the main thread waits and leave the thread running.
    signal.signal(signal.SIGINT, lambda number, frame: signals.append((number, frame)))
    try:
        threading.Thread(target=work, name="question").start()
        while not done.wait(INTERRUPT_SECONDS):
            if signals:  # repeated, because DuckDB ignores an interrupt before the call has started
                connection.interrupt()
    finally:
        signal.signal(signal.SIGINT, handler)
    if signals:
        handler(*signals[0])
    if errors:
        raise errors[0]
    return results[0]
