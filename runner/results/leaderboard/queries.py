"""A question in SQL to the board and all runs' records: answered from the files as they stand, row by row.

The tables are views of the board's file and of the runs' Parquet files, so that a question reads what it asks for, in
memory that does not grow with them. No other file can be opened, nothing can be written, and no setting changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
from duckdb import DuckDBPyConnection

from runner.base.errors import LeaderboardError, RunError
from runner.base.storage.atomic_files import replacing
from runner.base.storage.duckdb_connections import attended, connect, database_at, duckdb_pattern, process_spill
from runner.base.storage.duckdb_values import LINES_BEFORE, portable_columns, with_texts
from runner.base.storage.format_versions import LEADERBOARD
from runner.base.storage.read_only_sql import Parameters, bound, question_error, read_only
from runner.results.folder import RunFolder
from runner.results.leaderboard.schema import (
    BOARD_TABLES,
    COMMENTS,
    COMPARISON_COLUMNS,
    COMPARISONS,
    RECORD_COMMENTS,
    TESTED,
    comments,
    definitions,
)
from runner.results.notes import NOTE_COLUMNS, note_rows

MEMORY = "512MB"
"""What a question needs above this stands in a temporary folder until it is answered."""
THREADS = 2
"""Each thread holds a row group, so that more of them need more memory."""
BATCH_ROWS = 2_048
IN_PARQUET = ("messages", "completions")


@dataclass(frozen=True)
class QueryResult:
    """An answer as it comes: the names of its columns, then its rows."""

    columns: Sequence[str]
    _found: DuckDBPyConnection
    _lines_before: int = 0

    def batches(self) -> Iterator[list[tuple[Any, ...]]]:
        """The rows, some at a time.

        Raises:
            UsageError: the question cannot be answered to its end.
        """
        while rows := self.rows(BATCH_ROWS):
            yield rows

    def rows(self, most: int) -> list[tuple[Any, ...]]:
        """The next rows, at most this many; see `batches`."""
        try:
            return attended(self._found, lambda: self._found.fetchmany(most))
        except duckdb.Error as error:
            raise question_error(error, lines_before=self._lines_before) from error


@dataclass(frozen=True)
class Sources:
    """Where the tables of a question come from."""

    board: Path
    runs: Callable[[], Iterable[RunFolder]]
    update: Callable[[DuckDBPyConnection], None]
    """Has the tables of a board of an earlier version say what this one knows."""
    rebuilding: str
    """The command that makes the board again."""

    @contextmanager
    def asked(self, sql: str, parameters: Parameters = ()) -> Iterator[QueryResult]:
        """The answer to one question; values that Python has no equal for are DuckDB's texts for them.

        Raises:
            UsageError: the question is wrong, or is more than a question.
            LeaderboardError: the board is damaged.
        """
        with self._tables_of(sql) as connection:
            try:
                statement = attended(connection, lambda: read_only(connection, sql, parameters))
                found = attended(connection, lambda: connection.execute(statement, bound(parameters)))
                columns = found.description or []
                before = 0
                if (cast := with_texts(statement, [column[1] for column in columns])) is not None:
                    before = LINES_BEFORE
                    connection.abort()
                    found = attended(connection, lambda: connection.execute(cast, bound(parameters)))
                yield QueryResult([column[0] for column in columns], found, before)
            except duckdb.Error as error:
                raise question_error(error) from error

    def write_parquet(self, sql: str, target: Path, parameters: Parameters = ()) -> None:
        """Write the answer to a question as a Parquet file, whole or absent.

        Values of types that other readers of Parquet do not know become text; see `portable_columns`.

        Raises:
            UsageError, LeaderboardError: see `asked`.
            RunError: it cannot be written.
        """
        try:
            with replacing(target) as beside:
                file = f"{duckdb_pattern(beside.parent)}/{beside.name}"
                with self._tables_of(sql, file) as connection:
                    try:
                        statement = attended(connection, lambda: read_only(connection, sql, parameters))
                        params = bound(parameters) or None
                        found = attended(connection, lambda: connection.sql(statement, params=params))
                        portable = found.project(portable_columns(found.columns, found.types))
                        attended(connection, lambda: portable.write_parquet(file, compression="zstd"))
                    except duckdb.IOException as error:
                        raise RunError(f"cannot write {target}: {error}") from error
                    except duckdb.Error as error:
                        raise question_error(error) from error
        except OSError as error:
            raise RunError(f"cannot write {target}: {error.strerror}") from error

    def relation(self, sql: str, parameters: Parameters = ()) -> duckdb.DuckDBPyRelation:
        """The answer to one question as a lazy relation, which keeps its connection, and reads again when it is read.

        With parameters it was read once, and is held in memory.

        Raises:
            UsageError, LeaderboardError: see `asked`.
        """
        connection = connect(memory=MEMORY, threads=THREADS, spill=process_spill())
        self._view(connection, sql)
        try:
            return connection.sql(read_only(connection, sql, parameters), params=bound(parameters) or None)
        except duckdb.Error as error:
            raise question_error(error) from error

    @contextmanager
    def _tables_of(self, sql: str, *files: str) -> Iterator[DuckDBPyConnection]:
        """A connection with all tables, for one question."""
        with _spill() as spill, connect(memory=MEMORY, threads=THREADS, spill=Path(spill)) as connection:
            self._view(connection, sql, *files)
            yield connection

    def _view(self, connection: DuckDBPyConnection, sql: str, *files: str) -> None:
        """All tables, locked against other files, extensions and further settings.

        Those in Parquet files have their rows where the question names them; `files` can be written, too.
        """
        try:
            connection.execute("SET parquet_metadata_cache=true")  # a question is planned more than once
            if self.board.is_file():
                with database_at(self.board) as board:
                    connection.execute(f"ATTACH {board} AS board (READ_ONLY)")
                self._view_board(connection)
            else:
                connection.execute(_at_once(definitions()))
            allowed = [*self._view_parquet(connection, sql.lower()), *files]
            _view_comparisons(connection, sql.lower())
            self._view_notes(connection, sql.lower())
            connection.execute("SET allowed_paths=$1", [allowed])
            connection.execute("SET enable_external_access=false; SET lock_configuration=true")
        except (duckdb.Error, OSError) as error:
            raise LeaderboardError(
                f"cannot read {self.board}: {str(error).splitlines()[0]}. It can be made again: {self.rebuilding}"
            ) from error

    def _view_board(self, connection: DuckDBPyConnection) -> None:
        """The board's tables as views of its file; where an earlier version wrote it, only the longest of them."""
        there = _tables(connection, "board")
        current = "format" in there and connection.execute(
            "SELECT max(version) = ? FROM board.format", [LEADERBOARD]
        ).fetchall() == [(True,)]
        viewed = [name for name in BOARD_TABLES if name in there and (current or name == "rollouts")]
        for name in (*BOARD_TABLES, "format"):
            if name in there and name not in viewed:
                connection.execute(f"CREATE TABLE {name} AS SELECT * FROM board.{name}")
        connection.execute(_at_once(definitions()))
        if not current:
            self.update(connection)
        has, wanted = _columns(connection, "board"), _columns(connection, "memory")
        views = "DROP TABLE IF EXISTS format;"
        for name in viewed:
            columns = ", ".join(
                f'"{column}"' if column in has[name] else f'NULL::{kind} AS "{column}"'
                for column, kind in wanted[name].items()
            )
            views += f"DROP TABLE {name}; CREATE VIEW {name} AS SELECT {columns} FROM board.{name};"
        connection.execute(_at_once(views + comments({name: COMMENTS.get(name, {}) for name in viewed})))

    def _view_parquet(self, connection: DuckDBPyConnection, question: str) -> Iterator[str]:
        """The tables that stand in the runs' own files, which are yielded; without rows where they are not asked."""
        from runner.results.tables import COLUMNS

        for name in IN_PARQUET:
            columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS[name].items())
            connection.execute(f"CREATE SCHEMA IF NOT EXISTS empty; CREATE TABLE empty.{name} ({columns})")
            runs = self.runs() if name in question else ()
            there = [folder for folder in runs if folder.table(name).is_file()]
            for folder in there:
                folder.check(folder.table(name), since_sealed=True)
            files = [duckdb_pattern(folder.table(name)) for folder in there]
            source = f"FROM empty.{name}"
            if files:  # those of earlier versions lack columns, which are null there
                listed = ", ".join("'" + file.replace("'", "''") + "'" for file in files)
                source += f" UNION ALL BY NAME FROM read_parquet([{listed}], union_by_name=true, "
                source += "hive_partitioning=false)"
                yield from files
            connection.execute(f"CREATE VIEW {name} AS SELECT {', '.join(COLUMNS[name])} FROM ({source})")
            connection.execute(comments({name: RECORD_COMMENTS[name]}))

    def _view_notes(self, connection: DuckDBPyConnection, question: str) -> None:
        """The notes of all runs, whose files are read where the question names them.

        Raises:
            RunError: the notes of a run cannot be read.
        """
        columns = ", ".join(f'"{name}" {kind}' for name, kind in NOTE_COLUMNS.items())
        connection.execute(f"CREATE TABLE empty.notes ({columns}); CREATE VIEW notes AS FROM empty.notes")
        connection.execute(comments({"notes": RECORD_COMMENTS["notes"]}))
        for run in self.runs() if "notes" in question else ():
            if rows := note_rows(run):
                each = ", ".join(f"unnest(${place}::{kind}[])" for place, kind in enumerate(NOTE_COLUMNS.values(), 1))
                connection.execute(f"INSERT INTO empty.notes SELECT {each}", list(map(list, zip(*rows, strict=True))))


def _view_comparisons(connection: DuckDBPyConnection, question: str) -> None:
    """The view of tested pairs of runs; without rows, and without loading what tests them, where it is not asked."""
    if "comparisons" in question:
        from runner.results.leaderboard.sql_tests import paired_test

        kind = f"STRUCT({', '.join(f'{name} {kind}' for name, kind in TESTED.items())})"
        connection.create_function("paired_test", paired_test, [*["DOUBLE[]"] * 4, "DOUBLE", "BOOLEAN"], kind)
        connection.execute(COMPARISONS)
    else:
        columns = ", ".join(f"{name} {kind}" for name, kind in COMPARISON_COLUMNS.items())
        connection.execute(f"CREATE TABLE empty.comparisons ({columns})")
        connection.execute("CREATE VIEW comparisons AS SELECT * FROM empty.comparisons")
    connection.execute(comments({"comparisons": RECORD_COMMENTS["comparisons"]}))


def _tables(connection: DuckDBPyConnection, database: str) -> set[str]:
    found = connection.execute("SELECT table_name FROM duckdb_tables() WHERE database_name = ?", [database])
    return {name for (name,) in found.fetchall()}


def _columns(connection: DuckDBPyConnection, database: str) -> dict[str, dict[str, str]]:
    """The columns of all tables of a database, each with its type."""
    found = connection.execute(
        "SELECT table_name, column_name, data_type FROM duckdb_columns() "
        "WHERE database_name = ? AND schema_name = 'main' "
        "ORDER BY column_index",
        [database],
    )
    columns: dict[str, dict[str, str]] = {}
    for table, column, kind in found.fetchall():
        columns.setdefault(table, {})[column] = kind
    return columns


def _at_once(statements: str) -> str:
    """Statements in one transaction, since each takes its time to end."""
    return f"BEGIN; {statements} COMMIT;"


def _spill() -> TemporaryDirectory[str]:
    """A folder for what a question needs beside its memory."""
    try:
        return TemporaryDirectory(prefix="nip-run-")
    except OSError as error:
        raise LeaderboardError(f"no temporary folder can be made: {error.strerror}; set TMPDIR to one") from error
