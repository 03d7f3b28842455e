"""A run's folder into rows of the board, in memory that does not grow with them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from runner.results.folder import RunFolder
from runner.results.manifest import PLAYED
from runner.storage.atomic import read_json
from runner.storage.files import read_bounded
from runner.storage.queries import duckdb_pattern

if TYPE_CHECKING:
    import duckdb

PIECE_ROWS = 10_000
PIECE_BYTES = 8 << 20
MEMORY = 64 << 20
"""DuckDB keeps what it has read and written of the board until this is full, however little of it is used again."""
MAX_SPEC = 4 << 20
"""A resolved spec is longer than what it was made of."""
COPIES = 8
"""How often DuckDB holds a piece, at most, as it copies it from Parquet to the board."""

TABLES = """
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

_RUN_COLUMNS = (
    "run_id", "name", "kind", "benchmark", "protocol", "status", "seed", "spec_sha256", "version", "git_commit",
    "git_dirty", "parent_run_id", "iteration", "started_at", "finished_at", "rollouts", "completions",
    "prompt_tokens", "completion_tokens", "cached_tokens", "cost_usd", "dataset_sha256", "game_sha256",
)  # fmt: skip


def insert(connection: duckdb.DuckDBPyConnection, folder: RunFolder) -> None:
    """Put a run's rows into the tables; those of the same run that stand there are replaced."""
    manifest = folder.manifest()
    finished = manifest.status in PLAYED and folder.metrics.is_file() and folder.table("rollouts").is_file()
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
    needed = COPIES * max((size for _, _, size in pieces), default=0)
    if needed > MEMORY:
        connection.execute(f"SET memory_limit = '{needed}B'")
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
