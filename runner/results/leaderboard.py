"""Run folders into rows of `leaderboard.duckdb`, and questions to it.

The file is derived: everything in it stands in the run folders, and `rebuild` makes it again. DuckDB rewrites a
part of its file in place at each checkpoint, so a kill at the wrong moment leaves it unreadable. Therefore an append
takes our own lock on a side file, writes to a copy, and replaces the file: a reader sees the old or the new one.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb

from runner.errors import LeaderboardError, RunDirectoryError, UsageError
from runner.results.changes import MAX_SPEC
from runner.results.folder import RunFolder
from runner.results.manifest import Status
from runner.storage.atomic import fsync_dir, read_json
from runner.storage.files import create, open_to_read, read_bounded
from runner.storage.formats import LEADERBOARD, refuse_newer
from runner.storage.locks import locked
from runner.storage.queries import (
    connect,
    database_at,
    duckdb_literal,
    duckdb_pattern,
    interruptible_queries,
    work_beside,
)

FILE = "leaderboard.duckdb"
LOCK = ".leaderboard.lock"
WAIT_SECONDS = 60.0
PIECE_ROWS = 10_000
PIECE_BYTES = 8 << 20
BOARD_GROUP_ROWS = 10_240
MEMORY = 64 << 20
"""DuckDB keeps what it has read and written of the board until this is full, however little of it is used again."""
CHECKPOINT = "2MB"
"""Rows stand in memory until they are checkpointed, by default at 16 MB of log."""
QUESTION_MEMORY = "512MB"
"""What a question needs above this stands in a temporary folder until it is answered."""
QUESTION_THREADS = 2
"""Each thread holds a row group, so that more of them need more memory."""
COPIES = 8
"""How often DuckDB holds a piece, at most, as it copies it from Parquet to the board."""
_Kind = duckdb.StatementType

_TABLES = """
CREATE TABLE IF NOT EXISTS runs (
    run_id VARCHAR PRIMARY KEY, name VARCHAR, kind VARCHAR, benchmark VARCHAR, protocol VARCHAR, status VARCHAR,
    seed BIGINT, spec_sha256 VARCHAR, spec JSON, version VARCHAR, git_commit VARCHAR, git_dirty BOOLEAN,
    parent_run_id VARCHAR, iteration INTEGER, started_at TIMESTAMP, finished_at TIMESTAMP, rollouts BIGINT,
    completions BIGINT, prompt_tokens BIGINT, completion_tokens BIGINT, cached_tokens BIGINT, cost_usd DOUBLE,
    dataset_sha256 VARCHAR, game_sha256 VARCHAR, outcomes JSON
);
ALTER TABLE runs ADD COLUMN IF NOT EXISTS training JSON;
CREATE TABLE IF NOT EXISTS agents (
    run_id VARCHAR, agent VARCHAR, role VARCHAR, model_group VARCHAR, provider VARCHAR, model VARCHAR,
    base_model VARCHAR
);
CREATE TABLE IF NOT EXISTS metrics (
    run_id VARCHAR, agent VARCHAR, metric VARCHAR, value DOUBLE, stderr DOUBLE, ci_low DOUBLE, ci_high DOUBLE,
    n BIGINT, clusters BIGINT
);
CREATE TABLE IF NOT EXISTS rollouts (
    run_id VARCHAR, rollout_id VARCHAR, datapoint_id VARCHAR, repeat INTEGER, seed BIGINT, y TINYINT, stance TINYINT,
    decision TINYINT, correct BOOLEAN, outcome VARCHAR, rounds INTEGER, rewards JSON, error VARCHAR
);
CREATE OR REPLACE VIEW leaderboard AS
SELECT
    r.benchmark, r.run_id, r.name, r.protocol, m.value AS accuracy, m.ci_low, m.ci_high, m.stderr, m.n, m.clusters,
    r.outcomes, a.models, r.cost_usd, r.finished_at, r.spec_sha256, r.dataset_sha256, r.game_sha256, r.version
FROM runs r
JOIN metrics m ON m.run_id = r.run_id AND m.agent IS NULL AND m.metric = 'accuracy'
LEFT JOIN (
    SELECT run_id, string_agg(agent || '=' || model, ', ' ORDER BY agent) AS models FROM agents GROUP BY run_id
) a ON a.run_id = r.run_id
WHERE r.kind = 'benchmark' AND r.status = 'done'
ORDER BY r.benchmark, m.value DESC NULLS LAST, r.run_id;
"""

_FORMAT = f"""
CREATE TABLE IF NOT EXISTS format (version INTEGER);
INSERT INTO format SELECT {LEADERBOARD} WHERE NOT EXISTS (FROM format);
"""

_RUN_COLUMNS = (
    "run_id", "name", "kind", "benchmark", "protocol", "status", "seed", "spec_sha256", "version", "git_commit",
    "git_dirty", "parent_run_id", "iteration", "started_at", "finished_at", "rollouts", "completions",
    "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "dataset_sha256", "game_sha256",
)  # fmt: skip


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
        later = f"The run itself is complete. Append its rows later with: {self._rebuilding}"
        with self._replacing(wait_seconds, later) as connection:
            _insert(connection, folder)

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

    def rebuild(self, wait_seconds: float = WAIT_SECONDS) -> list[str]:
        """Make the board again from the run folders; the ids of the runs that are on it.

        Raises:
            LeaderboardError: the board stayed locked, or a run folder is damaged.
        """
        with self._replacing(wait_seconds, "Try again later.", fresh=True) as connection:
            runs = []
            for folder in self.runs():
                _insert(connection, folder)
                runs.append(folder.run_id)
            return runs

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Ask the board, and all runs' `messages` and `completions`, one read-only question.

        The question runs on a copy with no access to files, so that it can change nothing.

        Raises:
            UsageError: the question is wrong, or is more than a question.
            LeaderboardError: the board is damaged.
        """
        with self._tables_of(sql) as connection:
            try:
                statements = connection.extract_statements(sql)
                if len(statements) != 1 or statements[0].type not in (_Kind.SELECT, _Kind.EXPLAIN):
                    raise UsageError("one question at a time, and a question only reads: SELECT ...")
                found = connection.execute(sql, list(parameters))
                return [item[0] for item in found.description or []], found.fetchall()
            except duckdb.Error as error:
                raise UsageError(str(error)) from error

    @property
    def _rebuilding(self) -> str:
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
                _check_format(path)
                connection = connect(memory=f"{MEMORY}B")
                try:
                    connection.execute(f"SET checkpoint_threshold = '{CHECKPOINT}'")
                    # Rows wait in memory until their group is full; the usual groups are of 122,880 rows.
                    connection.execute(f"ATTACH {duckdb_literal(copy)} AS board (ROW_GROUP_SIZE {BOARD_GROUP_ROWS})")
                    connection.execute("USE board")
                    connection.execute(_FORMAT)
                    connection.execute(_TABLES)
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

    @contextmanager
    def _tables_of(self, sql: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """The tables that a question names, locked against files, extensions and further settings."""
        _check_format(self.path)
        with (
            TemporaryDirectory(prefix="nip-run-") as spill,
            connect(memory=QUESTION_MEMORY, threads=QUESTION_THREADS, spill=Path(spill)) as connection,
        ):
            try:
                self._load(connection, sql.lower())
                connection.execute("SET enable_external_access=false; SET lock_configuration=true")
            except (duckdb.Error, OSError) as error:
                raise LeaderboardError(
                    f"cannot read {self.path}: {str(error).splitlines()[0]}. It can be made again: {self._rebuilding}"
                ) from error
            yield connection

    def _load(self, connection: duckdb.DuckDBPyConnection, question: str) -> None:
        if self.path.is_file():
            with database_at(self.path) as file:
                connection.execute(f"ATTACH {file} AS board (READ_ONLY)")
                for table in ("runs", "agents", "metrics", "rollouts"):
                    connection.execute(f"CREATE TABLE {table} AS SELECT * FROM board.{table}")
                connection.execute("DETACH board")
        connection.execute(_TABLES)
        for name in ("messages", "completions"):
            if name in question:
                _load_table(connection, name, self.runs())


def _check_format(path: Path) -> None:
    """Read no more of a board than its format. One that cannot be read is for whoever needs what is in it.

    Raises:
        LeaderboardError: a newer nip-run wrote it.
    """
    if not path.is_file():
        return
    with suppress(duckdb.Error), _reading(path) as connection:
        has_format = "SELECT 1 FROM duckdb_tables() WHERE database_name = 'board' AND table_name = 'format'"
        if connection.execute(has_format).fetchall():
            ((found,),) = connection.execute("SELECT max(version) FROM board.format").fetchall()
            hint = ", or remove the file and have it made again from the run folders: nip-run leaderboard --rebuild"
            refuse_newer(path, found, LEADERBOARD, error=LeaderboardError, hint=hint)


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


def _insert(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> None:
    manifest = folder.manifest()
    finished = manifest.status == Status.DONE and folder.metrics.is_file() and folder.table("rollouts").is_file()
    # A run that failed or was interrupted has a row that says so, and no numbers.
    metrics = read_json(folder.metrics) if finished else {"outcomes": {}, "metrics": []}
    run_id = manifest.run_id
    for table in ("runs", "agents", "metrics", "rollouts"):
        connection.execute(f"DELETE FROM {table} WHERE run_id = ?", [run_id])
    spec = _spec_as_json(folder)
    row = [getattr(manifest, name) for name in _RUN_COLUMNS]
    names = ", ".join(_RUN_COLUMNS)
    marks = ", ".join("?" * len(_RUN_COLUMNS))
    connection.execute(
        f"INSERT INTO runs ({names}, spec, outcomes, training) VALUES ({marks}, ?, ?, ?)",
        [*row, spec, json.dumps(metrics["outcomes"]), _json_or_null(manifest.training)],
    )
    for agent in manifest.agents:
        connection.execute(
            "INSERT INTO agents VALUES (?, ?, ?, ?, ?, ?, ?)",
            [run_id, *(agent[k] for k in ("agent", "role", "model_group", "provider", "model", "base_model"))],
        )
    keys = ("agent", "metric", "value", "stderr", "ci_low", "ci_high", "n", "clusters")
    for metric in metrics["metrics"]:
        connection.execute(
            "INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", [run_id, *(metric[k] for k in keys)]
        )
    if finished:
        _insert_rollouts(connection, folder)


def _insert_rollouts(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> None:
    """Copy a run's rollouts in pieces, so that memory does not grow with them or with what is told of their errors."""
    path = duckdb_pattern(folder.table("rollouts"))
    pieces = list(_pieces(connection, path))
    largest = max((size for _, _, size in pieces), default=0)
    connection.execute(f"SET memory_limit = '{max(MEMORY, COPIES * largest)}B'")
    for first, end, _ in pieces:
        connection.execute(
            "INSERT INTO rollouts BY NAME SELECT * EXCLUDE (file_row_number) "
            "FROM read_parquet(?, file_row_number=true, hive_partitioning=false) WHERE file_row_number BETWEEN ? AND ?",
            [path, first, end - 1],
        )


def _pieces(connection: duckdb.DuckDBPyConnection, path: str) -> Iterator[tuple[int, int, int]]:
    """The rows of a Parquet file by whole row groups: the first, the one after the last, and their bytes."""
    groups = connection.execute(
        "SELECT row_group_num_rows, sum(total_uncompressed_size)::BIGINT FROM parquet_metadata(?) "
        "GROUP BY row_group_id, row_group_num_rows ORDER BY row_group_id",
        [path],
    ).fetchall()
    first = end = size = 0
    for rows, more in groups:
        if end > first and (end - first + rows > PIECE_ROWS or size + more > PIECE_BYTES):
            yield first, end, size
            first, size = end, 0
        end, size = end + rows, size + more
    if end > first:
        yield first, end, size


def _json_or_null(value: Any) -> str | None:
    return None if value is None else json.dumps(value)


def _spec_as_json(folder: RunFolder) -> str:
    import yaml

    return json.dumps(yaml.safe_load(read_bounded(folder.spec, MAX_SPEC)), sort_keys=True)


def _load_table(connection: duckdb.DuckDBPyConnection, name: str, runs: Iterable[RunFolder]) -> None:
    from runner.results.tables import COLUMNS

    files = [duckdb_pattern(f.table(name)) for f in runs if f.table(name).is_file()]
    if files:
        connection.execute(
            f"CREATE TABLE {name} AS SELECT * FROM read_parquet(?, union_by_name=true, hive_partitioning=false)",
            [files],
        )
    else:
        columns = ", ".join(f"{column} {kind}" for column, kind in COLUMNS[name].items())
        connection.execute(f"CREATE TABLE {name} ({columns})")
