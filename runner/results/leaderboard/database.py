"""The database file `leaderboard.duckdb`: add, update and query the rows of runs.

The file is derived from the run folders, and `rebuild` creates it again. DuckDB rewrites a part of its file in place at
each checkpoint, so a kill at the wrong moment makes the file unreadable. Therefore a writer takes a lock, writes to a
copy of the file, and then replaces the file by the copy, so a reader sees the old or the new file.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import _duckdb

from runner.base.errors import DamagedRunError, LeaderboardError, RunDirectoryError, RunError
from runner.base.storage.atomic_files import fsync_dir
from runner.base.storage.duckdb_connections import (
    connect,
    database_at,
    duckdb_literal,
    interruptible_queries,
    temporary_database_path,
)
from runner.base.storage.format_versions import LEADERBOARD
from runner.base.storage.locks import locked
from runner.base.storage.read_only_sql import Parameters
from runner.base.storage.safe_files import create, open_to_read
from runner.results.folder import RunFolder
from runner.results.leaderboard.queries import BoardSources, check_board_format, spill_folder
from runner.results.leaderboard.schema import update_definitions

if TYPE_CHECKING:
    import duckdb

FILE = "leaderboard.duckdb"
LOCK = ".leaderboard.lock"
WAIT_SECONDS = 60.0
"""The time to wait for the lock of another writer."""
BOARD_GROUP_ROWS = 4_096
"""The number of rows in DuckDB's row groups. Rows stay in memory until their group is full; the default is 122,880."""
CHECKPOINT = "2MB"
"""The maximum size of the log before DuckDB writes rows to the file. Until then, rows stay in memory; the default is
16 MB."""


@dataclass(frozen=True)
class Leaderboard:
    """The board of a results folder; `runs` returns all runs in it."""

    folder: Path
    runs: Callable[[], Iterable[RunFolder]]

    @property
    def path(self) -> Path:
        return self.folder / FILE

    def check(self) -> None:
        """Check, before a run costs anything, that its rows can be added to the board.

        Raises:
            LeaderboardError: a newer version of nip-run wrote the board.
        """
        _check_format(self.path)

    def append(self, folder: RunFolder, wait_seconds: float = WAIT_SECONDS) -> None:
        """Add a run's rows to the board, replacing rows of the same run.

        Raises:
            LeaderboardError: the board remained locked. Nothing is lost, since the rows are in the run folder, and the
                message says how to append them later.
        """
        from runner.results.leaderboard.ranks import rank_rows
        from runner.results.leaderboard.rows import insert_run

        advice = f"The run itself is complete. Append its rows later with: {self.rebuild_command}"
        with self._open_for_writing(wait_seconds, advice) as connection:
            insert_run(connection, folder)
            rank_rows(connection)

    def append_missing(self, folder: RunFolder) -> None:
        """Add a finished run's rows to the board if they are missing, as after a kill.

        Raises:
            LeaderboardError: see `append`.
        """
        if not self.has_finished(folder.run_id):
            self.append(folder)

    def append_unfinished(self, folder: RunFolder) -> None:
        """Add a run that did not finish to the board. Errors are ignored, since they would hide why the run stopped."""
        with suppress(LeaderboardError):
            self.append(folder, wait_seconds=1.0)

    def has_finished(self, run_id: str) -> bool:
        """Return whether the board has this run as finished; False if the board cannot be read."""
        from runner.results.manifest import Status

        if not self.path.is_file():
            return False
        with suppress(_duckdb.Error, OSError), _open_read_only(self.path) as connection:
            query = "SELECT 1 FROM board.runs WHERE run_id = ? AND status = ?"
            return bool(connection.execute(query, [run_id, Status.DONE]).fetchall())
        return False

    def update(
        self, new: Iterable[RunFolder], gone: Iterable[str], published: Mapping[str, int] = {}
    ) -> dict[str, str]:
        """Add the runs `new`, remove the runs `gone`, and return an error message for each run that was not added.

        `published` has the position of each run in the order of publication, if a server knows the order.

        Raises:
            LeaderboardError: the board remained locked.
        """
        from runner.results.leaderboard.ranks import rank_rows
        from runner.results.leaderboard.rows import remove_run

        errors: dict[str, str] = {}
        with self._open_for_writing(WAIT_SECONDS, "Try again later.") as connection:
            for run_id in gone:
                remove_run(connection, run_id)
            for folder in new:
                message = _try_to_insert(connection, folder)
                if message is not None:
                    errors[folder.run_id] = message
            connection.execute(
                "UPDATE runs SET published = p.place FROM (SELECT unnest(?) AS run_id, unnest(?) AS place) p "
                "WHERE p.run_id = runs.run_id AND runs.published IS DISTINCT FROM p.place",
                [list(published), list(published.values())],
            )
            rank_rows(connection)
        return errors

    def rebuild(self, wait_seconds: float = WAIT_SECONDS, on_damage: Callable[[str], None] | None = None) -> list[str]:
        """Rebuild the board from the run folders and return the ids of its runs.

        Damaged runs are left out and reported to `on_damage`. Without `on_damage`, the first damaged run is an error.

        Raises:
            LeaderboardError: the board remained locked.
            DamagedRunError: a run is damaged.
        """
        from runner.results.leaderboard.ranks import rank_rows
        from runner.results.leaderboard.rows import insert_run

        with self._open_for_writing(wait_seconds, "Try again later.", fresh=True) as connection:
            runs = []
            for folder in self.runs():
                try:
                    insert_run(connection, folder)
                except DamagedRunError as error:
                    if on_damage is None:
                        raise
                    on_damage(str(error))
                else:
                    runs.append(folder.run_id)
            rank_rows(connection)
            return runs

    def query(
        self, sql: str, parameters: Parameters = (), *, is_internal: bool = False
    ) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run a read-only query of the board and of all runs' records. Return the names of the columns, and all rows.

        With `is_internal`, the query is a part of nip-run. It is not checked, which saves the time to plan it twice.

        Raises:
            UsageError: the query is invalid, or does more than read.
            LeaderboardError: the board is damaged, or a newer version of nip-run wrote it.
        """
        with self.sources().answer(sql, parameters, is_internal=is_internal) as answer:
            return list(answer.columns), [row for rows in answer.batches() for row in rows]

    def sources(self) -> BoardSources:
        """Return the files that queries read."""
        return BoardSources(self.path, self.runs, self._upgrade_rows, self.rebuild_command)

    def relation(self, sql: str, parameters: Parameters = ()) -> duckdb.DuckDBPyRelation:
        """Return the result of `query` as a lazy relation with an open connection.

        Raises:
            UsageError, LeaderboardError: see `query`.
        """
        return self.sources().relation(sql, parameters)

    def _upgrade_rows(self, connection: duckdb.DuckDBPyConnection) -> None:
        """Fill the columns of this version in rows of an earlier version, for runs whose folders exist."""
        connection.execute("CREATE TABLE IF NOT EXISTS format (version INTEGER)")
        ((version,),) = connection.execute("SELECT max(version) FROM format").fetchall()
        if version == LEADERBOARD:
            return
        from runner.results.leaderboard.ranks import rank_rows
        from runner.results.leaderboard.rows import add_facts

        run_ids = {run_id for (run_id,) in connection.execute("SELECT run_id FROM runs").fetchall()}
        for folder in self.runs() if run_ids else ():
            if folder.run_id in run_ids:
                with suppress(OSError, RunError):  # on an error, the row is not updated and has no task
                    add_facts(connection, folder)
        if run_ids:
            connection.execute("DELETE FROM rank_tests")
            rank_rows(connection)
        connection.execute("DELETE FROM format")
        connection.execute("INSERT INTO format VALUES (?)", [LEADERBOARD])

    @property
    def rebuild_command(self) -> str:
        """The command that rebuilds the board."""
        return f"nip-run leaderboard --rebuild --results {self.folder}"

    @contextmanager
    def _open_for_writing(
        self, wait_seconds: float, advice: str, *, fresh: bool = False
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        """Yield a connection to a copy of the board. After the block, the copy replaces the board, except on an error.

        With `fresh`, the copy is empty. `advice` is the end of an error message, for a board that cannot be written.
        """
        from runner.results.leaderboard.rows import MEMORY

        path = self.path
        try:
            with (
                interruptible_queries(),
                locked(self.folder / LOCK, str(path), wait_seconds),
                _working_copy(path, fresh=fresh) as copy,
                spill_folder() as spill,
            ):
                if fresh:
                    _check_format(path)  # without `fresh`, the format of the copy is checked below
                connection = connect(memory=f"{MEMORY}B", spill=Path(spill))
                try:
                    connection.execute(f"SET checkpoint_threshold = '{CHECKPOINT}'")
                    connection.execute(f"ATTACH {duckdb_literal(copy)} AS board (ROW_GROUP_SIZE {BOARD_GROUP_ROWS})")
                    connection.execute("USE board")
                    check_board_format(connection, path)
                    update_definitions(connection)
                    self._upgrade_rows(connection)
                    yield connection  # no transaction, since the copy replaces the file or is discarded
                    connection.execute("CHECKPOINT")  # before close(), which would hide that the disk is full
                finally:
                    connection.close()
                if _wal_path(copy).exists():
                    raise LeaderboardError(f"{copy} could not be completed; check that the disk is not full. {advice}")
                _replace_board(copy, path)
        except RunDirectoryError as error:
            raise LeaderboardError(f"{error}, and has been for {wait_seconds:g} s. {advice}") from error
        except (_duckdb.Error, OSError) as error:
            raise LeaderboardError(f"cannot write {path}: {str(error).splitlines()[0]}. {advice}") from error


def _check_format(path: Path) -> None:
    """Check the board's format. A board that cannot be read passes, since the next access raises an error.

    Raises:
        LeaderboardError: a newer version of nip-run wrote the board.
    """
    if not path.is_file():
        return
    with suppress(_duckdb.Error), _open_read_only(path) as connection:
        check_board_format(connection, path)


@contextmanager
def _open_read_only(path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """Open a read-only connection to a board, attached as `board`."""
    with database_at(path) as file, connect() as connection:
        connection.execute(f"ATTACH {file} AS board (READ_ONLY)")
        yield connection


@contextmanager
def _working_copy(path: Path, *, fresh: bool) -> Iterator[Path]:
    """Yield the path of a working copy of the board, which is removed at the end. With `fresh`, nothing is copied."""
    with temporary_database_path(path, ".new") as copy:
        try:
            _remove_database(copy)  # of a writer that was killed
            if path.is_file() and not fresh:
                _copy_file(path, copy)
            yield copy
        finally:
            _remove_database(copy)


def _remove_database(path: Path) -> None:
    for file in (path, _wal_path(path)):
        file.unlink(missing_ok=True)


def _copy_file(source: Path, target: Path) -> None:
    with open_to_read(source) as source_file, create(target) as file:
        shutil.copyfileobj(source_file, file, 1 << 20)


def _replace_board(copy: Path, path: Path) -> None:
    """Replace the board by a copy of it. A copy in another folder is first copied to the board's folder."""
    temporary = path.with_name(path.name + ".new")
    try:
        if copy.parent != path.parent:
            _copy_file(copy, temporary)
        with open_to_read(temporary) as file:
            os.fsync(file.fileno())
        # A write-ahead log of a killed writer belongs to the old file, so it must not stay next to the new one.
        _wal_path(path).unlink(missing_ok=True)
        temporary.replace(path)
        fsync_dir(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


def _wal_path(path: Path) -> Path:
    """Return the path of DuckDB's write-ahead log of a file."""
    return path.with_name(path.name + ".wal")


def _try_to_insert(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> str | None:
    """Insert the rows of a run, and return None. If this fails, leave out the run, and return the error's message."""
    from runner.results.leaderboard.rows import insert_run, remove_run

    try:
        insert_run(connection, folder)
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - an error of one run must not affect the others
        with suppress(_duckdb.Error):
            connection.rollback()
        remove_run(connection, folder.run_id)
        return str(error).partition("\n")[0]
    return None
