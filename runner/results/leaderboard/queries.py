"""Read-only SQL queries of the board and of all runs' records.

The tables are views of the board's file and of the runs' Parquet files. So a query reads only the columns and rows that
it needs, and its memory does not grow with the files. It cannot open other files, write, or change settings.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import _duckdb

from runner.base.errors import LeaderboardError, RunError, os_errors_as
from runner.base.storage.atomic_files import replacing
from runner.base.storage.duckdb_connections import (
    connect,
    database_at,
    duckdb_pattern,
    load_relations,
    process_spill,
    run_query,
)
from runner.base.storage.duckdb_values import LINES_BEFORE, cast_to_text, portable_columns
from runner.base.storage.format_versions import LEADERBOARD, refuse_newer
from runner.base.storage.read_only_sql import Parameters, bindable, check_read_only, query_error
from runner.results.folder import RunFolder
from runner.results.leaderboard.line_tables import LINE_TABLES, line_rows
from runner.results.leaderboard.schema import (
    ANALYZED_ROLLOUTS,
    BOARD_TABLES,
    COMMENTS,
    COMPARISON_COLUMNS,
    COMPARISONS,
    NEW_COLUMNS,
    RECORD_COMMENTS,
    TEST_COLUMNS,
    VIEWS,
    comments_sql,
    definitions_sql,
    used_views_sql,
)
from runner.results.table_columns import ANALYSES, ANALYSIS_COLUMNS, COLUMNS, NOTE_COLUMNS

if TYPE_CHECKING:
    import duckdb
    from duckdb import DuckDBPyConnection

MEMORY = "512MB"
"""The memory limit of a query; more data is spilled to a temporary folder that is removed afterwards."""
THREADS = 2
"""The number of threads of a query; each has a row group in memory."""
BATCH_ROWS = 2_048
_CATALOG = re.compile("duckdb_|information_schema|pg_|sqlite_|comment|show|describe|pragma|query")
"""Matches queries that may read the definitions of views or the comments on columns, without naming the view."""
PARQUET_TABLES = ("messages", "completions")
"""The tables that are only in the runs' Parquet files, and not in the board's file."""


@dataclass(frozen=True)
class QueryResult:
    """The result of a query: the names of its columns, and its rows in batches."""

    columns: Sequence[str]
    _cursor: DuckDBPyConnection
    _lines_before: int = 0

    def batches(self) -> Iterator[list[tuple[Any, ...]]]:
        """Yield the rows in batches.

        Raises:
            UsageError: the query fails after some rows.
        """
        while rows := self.rows(BATCH_ROWS):
            yield rows

    def rows(self, limit: int) -> list[tuple[Any, ...]]:
        """Return at most `limit` further rows, and raise as `batches` does."""
        try:
            return run_query(self._cursor, lambda: self._cursor.fetchmany(limit))
        except _duckdb.Error as error:
            raise query_error(error, lines_before=self._lines_before) from error


@dataclass(frozen=True)
class BoardSources:
    """The files that queries read: the board and the runs' folders."""

    board: Path
    runs: Callable[[], Iterable[RunFolder]]
    upgrade_rows: Callable[[DuckDBPyConnection], None]
    """Function that updates the tables of a board that an earlier version wrote."""
    rebuild_command: str
    """The command that rebuilds the board."""

    @contextmanager
    def answer(self, sql: str, parameters: Parameters = (), *, is_internal: bool = False) -> Iterator[QueryResult]:
        """Yield the result of a query. Values without an equivalent type in Python become DuckDB's text for them.

        With `is_internal`, the query is part of nip-run's code, reads only the tables of the board, and is not checked.

        Raises:
            UsageError: the query is invalid, or does more than read.
            LeaderboardError: the board is damaged.
        """
        with self._connect(sql, is_internal=is_internal) as connection:
            try:
                statement = (
                    sql if is_internal else run_query(connection, lambda: check_read_only(connection, sql, parameters))
                )
                cursor = run_query(connection, lambda: connection.execute(statement, bindable(parameters)))
                columns = cursor.description or []
                lines_before = 0
                if (cast_statement := cast_to_text(statement, [column[1] for column in columns])) is not None:
                    lines_before = LINES_BEFORE
                    connection.abort()
                    cursor = run_query(connection, lambda: connection.execute(cast_statement, bindable(parameters)))
                yield QueryResult([column[0] for column in columns], cursor, lines_before)
            except _duckdb.Error as error:
                raise query_error(error) from error

    def write_parquet(self, sql: str, target: Path, parameters: Parameters = ()) -> None:
        """Write the result of a query to a Parquet file, atomically.

        Values of types that other Parquet readers do not support become text; see `portable_columns`.

        Raises:
            UsageError, LeaderboardError: see `answer`.
            RunError: the file cannot be written.
        """
        load_relations()
        with os_errors_as(RunError, f"cannot write {target}"), replacing(target) as temporary:
            file = f"{duckdb_pattern(temporary.parent)}/{temporary.name}"
            with self._connect(sql, file) as connection:
                try:
                    statement = run_query(connection, lambda: check_read_only(connection, sql, parameters))
                    params = bindable(parameters) or None
                    result = run_query(connection, lambda: connection.sql(statement, params=params))
                    portable = result.project(portable_columns(result.columns, result.types))
                    run_query(connection, lambda: portable.write_parquet(file, compression="zstd"))
                except _duckdb.IOException as error:
                    raise RunError(f"cannot write {target}: {error}") from error
                except _duckdb.Error as error:
                    raise query_error(error) from error

    def relation(self, sql: str, parameters: Parameters = ()) -> duckdb.DuckDBPyRelation:
        """Return the result of a query as a lazy relation with an open connection, which reads again at each use.

        With parameters, the result is read once and stays in memory.

        Raises:
            UsageError, LeaderboardError: see `answer`.
        """
        load_relations()
        connection = connect(memory=MEMORY, threads=THREADS, spill=process_spill())
        self._create_views(connection, sql)
        try:
            return connection.sql(check_read_only(connection, sql, parameters), params=bindable(parameters) or None)
        except _duckdb.Error as error:
            raise query_error(error) from error

    @contextmanager
    def _connect(self, sql: str, *files: str, is_internal: bool = False) -> Iterator[DuckDBPyConnection]:
        """Open a connection with all tables, for one query. The query may write to `files`."""
        with spill_folder() as spill, connect(memory=MEMORY, threads=THREADS, spill=Path(spill)) as connection:
            self._create_views(connection, sql, *files, is_internal=is_internal)
            yield connection

    def _create_views(self, connection: DuckDBPyConnection, sql: str, *files: str, is_internal: bool = False) -> None:
        """Create all tables as views, and prevent the connection from opening other files and changing settings.

        Tables from Parquet files have rows only if the query names them. The query may write to `files`.
        """
        try:
            connection.execute("SET parquet_metadata_cache=true")  # a query is planned more than once
            if self.board.is_file():
                with database_at(self.board) as board:
                    connection.execute(f"ATTACH {board} AS board (READ_ONLY)")
                self._create_board_views(connection, sql.lower())
            else:
                connection.execute(_in_transaction(definitions_sql()))
            if is_internal:
                return
            connection.begin()  # since each commit takes time
            allowed = [*self._create_parquet_views(connection, sql.lower()), *files]
            allowed += self._create_analysis_views(connection, sql.lower())
            _create_comparisons_view(connection, sql.lower())
            self._create_views_of_lines(connection, sql.lower())
            connection.commit()
            connection.execute("SET allowed_paths=$1", [allowed])
            connection.execute("SET enable_external_access=false; SET lock_configuration=true")
        except (_duckdb.Error, OSError) as error:
            raise LeaderboardError(
                f"cannot read {self.board}: {str(error).splitlines()[0]}. Rebuild it with: {self.rebuild_command}"
            ) from error

    def _create_board_views(self, connection: DuckDBPyConnection, query: str) -> None:
        """Create the board's tables: as views of its file, or as updated copies if an earlier version wrote the file.

        The longest table, `rollouts`, is always a view, since a copy would take much memory.

        Raises:
            LeaderboardError: a newer version of nip-run wrote the board.
        """
        is_current = check_board_format(connection, self.board) == LEADERBOARD
        if is_current and _has_all_columns(connection):
            views = "".join(f"CREATE VIEW {name} AS FROM board.{name};" for name in BOARD_TABLES)
            if _CATALOG.search(query):
                views += "".join(VIEWS.values()) + comments_sql(COMMENTS)
            else:
                views += used_views_sql(query + COMPARISONS * ("comparisons" in query))
            connection.execute(_in_transaction(views))
            return
        board_columns = _column_types(connection, "board")
        view_names = [name for name in BOARD_TABLES if name in board_columns and (is_current or name == "rollouts")]
        for name in (*BOARD_TABLES, "format"):
            if name in board_columns and name not in view_names:
                connection.execute(f"CREATE TABLE {name} AS SELECT * FROM board.{name}")
        connection.execute(_in_transaction(definitions_sql()))
        if not is_current:
            self.upgrade_rows(connection)
        current_columns = _column_types(connection, "memory")
        views = "DROP TABLE IF EXISTS format;"
        for name in view_names:
            columns = ", ".join(
                f'"{column}"' if column in board_columns[name] else f'NULL::{kind} AS "{column}"'
                for column, kind in current_columns[name].items()
            )
            views += f"DROP TABLE {name}; CREATE VIEW {name} AS SELECT {columns} FROM board.{name};"
        comments = comments_sql({name: COMMENTS.get(name, {}) for name in view_names})
        connection.execute(_in_transaction(views + comments))

    def _create_parquet_views(self, connection: DuckDBPyConnection, query: str) -> Iterator[str]:
        """Create the tables from the runs' Parquet files, and yield these files. A table not in the query is empty."""
        for name in PARQUET_TABLES:
            connection.execute(
                f"CREATE SCHEMA IF NOT EXISTS empty; CREATE TABLE empty.{name} ({_typed(COLUMNS[name])})"
            )
            runs = self.runs() if name in query else ()
            folders = [folder for folder in runs if folder.table(name).is_file()]
            for folder in folders:
                folder.check(folder.table(name), since_sealed=True)
            files = [duckdb_pattern(folder.table(name)) for folder in folders]
            yield from files
            _create_view_of_files(connection, name, COLUMNS[name], files)
            _add_comments(connection, name, query)

    def _create_analysis_views(self, connection: DuckDBPyConnection, query: str) -> list[str]:
        """Create the views of the analyses of all runs if the query may use them, and return their files."""
        is_used, columns = "analy" in query, ANALYSIS_COLUMNS
        if not is_used and not _CATALOG.search(query):
            return []
        connection.execute(f"CREATE TABLE empty.analyses ({_typed(columns)})")
        runs = self.runs() if is_used else ()
        paths = [path for folder in runs for path in sorted((folder.path / ANALYSES).glob("*.parquet"))]
        files = [duckdb_pattern(path) for path in paths]
        _create_view_of_files(connection, "analyses", columns, files)
        connection.execute(ANALYZED_ROLLOUTS)
        _add_comments(connection, "analyses", query)
        _add_comments(connection, "analyzed_rollouts", query)
        return files

    def _create_views_of_lines(self, connection: DuckDBPyConnection, query: str) -> None:
        """Create the tables of notes and, if the query may use them, of labels and validations.

        Raises:
            RunError: a file of a run cannot be read.
        """
        self._create_view_of_lines(connection, query, "notes", NOTE_COLUMNS, _note_rows)
        for name, table in LINE_TABLES.items():
            if name[:5] in query or _CATALOG.search(query):
                self._create_view_of_lines(connection, query, name, table.columns, partial(line_rows, table=table))

    def _create_view_of_lines(
        self,
        connection: DuckDBPyConnection,
        query: str,
        name: str,
        columns: Mapping[str, str],
        rows_of: Callable[[RunFolder], Sequence[tuple[Any, ...]]],
    ) -> None:
        """Create a table. It has rows only if the query names it, since this reads files of all runs."""
        connection.execute(f"CREATE TABLE empty.{name} ({_typed(columns)}); CREATE VIEW {name} AS FROM empty.{name}")
        _add_comments(connection, name, query)
        lists = ", ".join(f"unnest(${i}::{kind}[])" for i, kind in enumerate(columns.values(), 1))
        insertion = f"INSERT INTO empty.{name} SELECT {lists}"
        for run in self.runs() if name in query else ():
            if rows := rows_of(run):
                try:
                    connection.execute(insertion, [*map(list, zip(*rows, strict=True))])
                except _duckdb.ConversionException as error:
                    problem = str(error).splitlines()[0]
                    raise RunError(f"{run.path}: a line of {name} has a wrong value: {problem}") from error


def _note_rows(run: RunFolder) -> list[tuple[Any, ...]]:
    from runner.results.notes import note_rows

    return note_rows(run)


def _typed(columns: Mapping[str, str]) -> str:
    """Return columns with their types for a SQL definition."""
    return ", ".join(f'"{column}" {kind}' for column, kind in columns.items())


def _create_view_of_files(
    connection: DuckDBPyConnection, name: str, columns: Mapping[str, str], files: Sequence[str]
) -> None:
    """Create a view of the rows of Parquet files with these columns; it is empty without files."""
    source = f"FROM empty.{name}"
    if files:  # files of earlier versions lack columns, which become null
        file_list = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
        source += f" UNION ALL BY NAME FROM read_parquet([{file_list}], union_by_name=true, hive_partitioning=false)"
    listed = ", ".join(f'"{column}"' for column in columns)
    connection.execute(f"CREATE VIEW {name} AS SELECT {listed} FROM ({source})")


def _create_comparisons_view(connection: DuckDBPyConnection, query: str) -> None:
    """Create the view of pairs of runs with their tests. It is empty unless the query names it."""
    if "comparisons" in query:
        from runner.results.leaderboard.sql_tests import paired_test

        kind = f"STRUCT({', '.join(f'{name} {kind}' for name, kind in TEST_COLUMNS.items())})"
        connection.create_function("paired_test", paired_test, [*["DOUBLE[]"] * 4, "DOUBLE", "BOOLEAN"], kind)
        connection.execute(COMPARISONS)
    else:
        columns = ", ".join(f"{name} {kind}" for name, kind in COMPARISON_COLUMNS.items())
        connection.execute(f"CREATE TABLE empty.comparisons ({columns})")
        connection.execute("CREATE VIEW comparisons AS SELECT * FROM empty.comparisons")
    _add_comments(connection, "comparisons", query)


def _add_comments(connection: DuckDBPyConnection, table: str, query: str) -> None:
    """Add the comments on a table's columns if the query may read comments; otherwise not, since this is slow."""
    if _CATALOG.search(query):
        connection.execute(comments_sql({table: RECORD_COMMENTS[table]}))


def check_board_format(connection: DuckDBPyConnection, path: Path) -> int | None:
    """Check that this version can read the attached board, and return its format; None if nip-run 0.1.0 wrote it.

    Raises:
        LeaderboardError: a newer version of nip-run wrote the board.
    """
    try:
        ((version,),) = connection.execute("SELECT max(version) FROM board.format").fetchall()
    except _duckdb.CatalogException:
        return None
    hint = ", or remove the file and rebuild it from the run folders: nip-run leaderboard --rebuild"
    refuse_newer(path, version, LEADERBOARD, error=LeaderboardError, hint=hint)
    return int(version)


def _has_all_columns(connection: DuckDBPyConnection) -> bool:
    """Return whether the tables of the attached board have all columns of this version."""
    try:
        for table, columns in NEW_COLUMNS.items():
            names = '", "'.join(columns)
            connection.execute(f'SELECT "{names}" FROM board.{table} LIMIT 0')
    except _duckdb.BinderException:
        return False
    return True


def _column_types(connection: DuckDBPyConnection, database: str) -> dict[str, dict[str, str]]:
    """Return the types of the columns of each table of a database."""
    cursor = connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "
        "WHERE database_name = ? AND schema_name = 'main' "
        "ORDER BY column_index",
        [database],
    )
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in cursor.fetchall():
        columns.setdefault(table, {})[column] = kind
    return columns


def _in_transaction(statements: str) -> str:
    """Return SQL that runs the statements in one transaction, since each commit takes time."""
    return f"BEGIN; {statements} COMMIT;"


def spill_folder() -> TemporaryDirectory[str]:
    """Create a temporary folder for data that exceeds the memory limit."""
    with os_errors_as(
        LeaderboardError, "cannot create a temporary folder", "; set TMPDIR to a folder that you can write to"
    ):
        return TemporaryDirectory(prefix="nip-run-")
