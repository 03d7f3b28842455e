"""The file `leaderboard.duckdb`: how a run's rows come to it, and questions to it.

The file is derived: everything in it stands in the run folders, and `rebuild` makes it again. DuckDB rewrites a
part of its file in place at each checkpoint, so a kill at the wrong moment leaves it unreadable. Therefore an append
takes our own lock on a side file, writes to a copy, and replaces the file: a reader sees the old or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from runner.base.errors import DamagedRunError, LeaderboardError, RunDirectoryError, RunError
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.duckdb_connections import (
    connect,
    database_at,
    duckdb_literal,
    interruptible_queries,
    work_beside,
)
from runner.base.storage.format_versions import LEADERBOARD, refuse_newer
from runner.base.storage.locks import locked
from runner.base.storage.read_only_sql import Parameters
from runner.base.storage.safe_files import create, open_to_read
from runner.results.folder import RunFolder
from runner.results.leaderboard.queries import Sources
from runner.results.leaderboard.ranks import rank_rows
from runner.results.leaderboard.rows import MEMORY, add_facts, insert, remove
from runner.results.leaderboard.schema import definitions
from runner.results.manifest import Status

FILE = "leaderboard.duckdb"
LOCK = ".leaderboard.lock"
WAIT_SECONDS = 60.0
BOARD_GROUP_ROWS = 10_240
CHECKPOINT = "2MB"
"""Rows stand in memory until they are checkpointed, by default at 16 MB of log."""


@dataclass(frozen=True)
class Leaderboard:
    """The board of a results folder; `runs` gives all runs in it."""

    folder: Path
    runs: Callable[[], Iterable[RunFolder]]

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def check(self) -> None:
        """See, before anything is paid for, that a run's rows may be put on the board.

        Raises:
            LeaderboardError: a newer nip-run wrote it.
        """
        _check_format(self.path)

    def append(self, folder: RunFolder, wait_seconds: float = WAIT_SECONDS) -> None:
        """Put a run's rows on the board; rows of the same run that stand there are replaced.

        Raises:
            LeaderboardError: the board stayed locked; the message says how to append later. Nothing is lost: the
                rows stand in the run folder.
        """
        later = f"The run itself is complete. Append its rows later with: {self.rebuilding}"
        with self._replacing(wait_seconds, later) as connection:
            insert(connection, folder)
            rank_rows(connection)

    def append_missing(self, folder: RunFolder) -> None:
        """Put a finished run's rows on the board if they are not there, as after a kill before they were.

        Raises:
            LeaderboardError: see `append`.
        """
        if not self.holds(folder.run_id):
            self.append(folder)

    def append_unfinished(self, folder: RunFolder) -> None:
        """Have the board say that a run did not finish; its own troubles must not hide why."""
        with suppress(LeaderboardError):
            self.append(folder, wait_seconds=1.0)

    def holds(self, run_id: str) -> bool:
        """Whether the board has this run as finished; False too where it cannot be read."""
        if not self.path.is_file():
            return False
        with suppress(duckdb.Error, OSError), _reading(self.path) as connection:
            done = "SELECT 1 FROM board.runs WHERE run_id = ? AND status = ?"
            return bool(connection.execute(done, [run_id, Status.DONE]).fetchall())
        return False

    def update(
        self, new: Iterable[RunFolder], gone: Iterable[str], published: Mapping[str, int] = {}
    ) -> dict[str, str]:
        """Put runs on the board and take others from it, at once; why some could not be put there, by their ids.

        `published` has the place of each run in the order of publication, if somebody vouches for that.

        Raises:
            LeaderboardError: the board stayed locked.
        """
        wrong: dict[str, str] = {}
        with self._replacing(WAIT_SECONDS, "Try again later.") as connection:
            for run_id in gone:
                remove(connection, run_id)
            for folder in new:
                try:
                    insert(connection, folder)
                except MemoryError:
                    raise
                except Exception as error:  # noqa: BLE001 - whatever it is, it is this run's, and not the others'
                    with suppress(duckdb.Error):
                        connection.rollback()
                    remove(connection, folder.run_id)
                    wrong[folder.run_id] = str(error).partition("\n")[0]
            connection.execute(
                "UPDATE runs SET published = p.place FROM (SELECT unnest(?) AS run_id, unnest(?) AS place) p "
                "WHERE p.run_id = runs.run_id",
                [list(published), list(published.values())],
            )
            rank_rows(connection)
        return wrong

    def rebuild(self, wait_seconds: float = WAIT_SECONDS, on_damage: Callable[[str], None] | None = None) -> list[str]:
        """Make the board again from the run folders; the ids of the runs that are on it.

        A damaged run is left out, and `on_damage` is told what is wrong with it; without that, the first one raises.

        Raises:
            LeaderboardError: the board stayed locked.
            DamagedRunError: a run is damaged.
        """
        with self._replacing(wait_seconds, "Try again later.", fresh=True) as connection:
            runs = []
            for folder in self.runs():
                try:
                    insert(connection, folder)
                except DamagedRunError as error:
                    if on_damage is None:
                        raise
                    on_damage(str(error))
                else:
                    runs.append(folder.run_id)
            rank_rows(connection)
            return runs

    def query(self, sql: str, parameters: Parameters = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Ask the board, and all runs' `messages` and `completions`, one read-only question; all rows at once.

        Raises:
            UsageError: the question is wrong, or is more than a question.
            LeaderboardError: the board is damaged.
        """
        with self.sources().asked(sql, parameters) as answer:
            return list(answer.columns), [row for rows in answer.batches() for row in rows]

    def sources(self) -> Sources:
        """What questions are answered from.

        Raises:
            LeaderboardError: a newer nip-run wrote the board.
        """
        _check_format(self.path)
        return Sources(self.path, self.runs, self._update, self.rebuilding)

    def relation(self, sql: str, parameters: Parameters = ()) -> duckdb.DuckDBPyRelation:
        """`query`, as a lazy relation, which keeps its connection.

        Raises:
            UsageError, LeaderboardError: see `query`.
        """
        return self.sources().relation(sql, parameters)

    def _update(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Have the rows of an earlier version say what this one knows, as far as the runs' folders are there."""
        connection.execute("CREATE TABLE IF NOT EXISTS format (version INTEGER)")
        ((found,),) = connection.execute("SELECT max(version) FROM format").fetchall()
        if found == LEADERBOARD:
            return
        held = {run_id for (run_id,) in connection.execute("SELECT run_id FROM runs").fetchall()}
        for folder in self.runs() if held else ():
            if folder.run_id in held:
                with suppress(OSError, RunError):  # else its row stays as it is, without a task
                    add_facts(connection, folder)
        if held:
            connection.execute("DELETE FROM rank_tests")
            rank_rows(connection)
        connection.execute("DELETE FROM format")
        connection.execute("INSERT INTO format VALUES (?)", [LEADERBOARD])

    @property
    def rebuilding(self) -> str:
        """The command that makes the board again."""
        return f"nip-run leaderboard --rebuild --results {self.folder}"

    @contextmanager
    def _replacing(
        self, wait_seconds: float, later: str, *, fresh: bool = False
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """A connection to a copy of the board, which takes the board's place if all goes well."""
        path = self.path
        try:
            with (
                interruptible_queries(),
                locked(self.folder / LOCK, str(path), wait_seconds),
                _copy_beside(path, fresh=fresh) as copy,
            ):
                if fresh:
                    _check_format(path)  # else the copy is checked, which spares another connection
                connection = connect(memory=f"{MEMORY}B")
                try:
                    connection.execute(f"SET checkpoint_threshold = '{CHECKPOINT}'")
                    # Rows wait in memory until their group is full; the usual groups are of 122,880 rows.
                    connection.execute(f"ATTACH {duckdb_literal(copy)} AS board (ROW_GROUP_SIZE {BOARD_GROUP_ROWS})")
                    connection.execute("USE board")
                    _refuse_newer(connection, path)
                    _define(connection)
                    self._update(connection)
                    yield connection  # no transaction: the copy takes the place of the file, or is thrown away
                    connection.execute("CHECKPOINT")  # here and not in close(), which hides that the disk is full
                finally:
                    connection.close()
                if _log_of(copy).exists():
                    raise LeaderboardError(f"{copy} could not be completed; is the disk full? {later}")
                _put(copy, path)
        except RunDirectoryError as error:
            raise LeaderboardError(f"{error}, and has been for {wait_seconds:g} s. {later}") from error
        except (duckdb.Error, OSError) as error:
            raise LeaderboardError(f"cannot write {path}: {str(error).splitlines()[0]}. {later}") from error


def _check_format(path: Path) -> None:
    """Read no more of a board than its format. One that cannot be read is for whoever needs what is in it.

    Raises:
        LeaderboardError: a newer nip-run wrote it.
    """
    if not path.is_file():
        return
    with suppress(duckdb.Error), _reading(path) as connection:
        _refuse_newer(connection, path)


def _refuse_newer(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Refuse the attached board if a newer nip-run wrote it; `path` is the board's file."""
    if _has(connection, "board", "format"):
        ((found,),) = connection.execute("SELECT max(version) FROM board.format").fetchall()
        hint = ", or remove the file and have it made again from the run folders: nip-run leaderboard --rebuild"
        refuse_newer(path, found, LEADERBOARD, error=LeaderboardError, hint=hint)


def _has(connection: duckdb.DuckDBPyConnection, database: str, table: str) -> bool:
    there = "SELECT 1 FROM duckdb_tables() WHERE database_name = ? AND table_name = ?"
    return bool(connection.execute(there, [database, table]).fetchall())


def _define(connection: duckdb.DuckDBPyConnection) -> None:
    """Make what is missing of the board, at once: each statement by itself would be written to disk."""
    connection.execute(f"BEGIN; {definitions()} COMMIT;")


@contextmanager
def _reading(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A connection to a board that only reads it, by the name `board`."""
    with database_at(path) as file, connect() as connection:
        connection.execute(f"ATTACH {file} AS board (READ_ONLY)")
        yield connection


@contextmanager
def _copy_beside(path: Path, *, fresh: bool) -> Iterator[Path]:
    """A copy of the board to write to, which is gone in the end, and its log with it."""
    with work_beside(path, ".new") as copy:
        try:
            for leftover in (copy, _log_of(copy)):
                leftover.unlink(missing_ok=True)
            if path.is_file() and not fresh:
                with open_to_read(path) as board, create(copy) as file:
                    shutil.copyfileobj(board, file, 1 << 20)
            yield copy
        finally:
            for leftover in (copy, _log_of(copy)):
                leftover.unlink(missing_ok=True)


def _put(copy: Path, path: Path) -> None:
    """Have a copy take the place of the board; one that stands elsewhere is moved beside it first."""
    beside = path.with_name(path.name + ".new")
    try:
        if copy.parent != path.parent:
            with open_to_read(copy) as made, create(beside) as file:
                shutil.copyfileobj(made, file, 1 << 20)
        with open_to_read(beside) as file:
            os.fsync(file.fileno())
        # A log that a killed foreign writer left belongs to the file that is replaced, and to no other.
        _log_of(path).unlink(missing_ok=True)
        beside.replace(path)
        fsync_dir(path.parent)
    finally:
        beside.unlink(missing_ok=True)


def _log_of(path: Path) -> Path:
    """DuckDB's write-ahead log of a file."""
    return path.with_name(path.name + ".wal")
