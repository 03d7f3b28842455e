"""Writes the public board as a DuckDB file to download. docs/reference/report-files.md describes the tables.

The board worker writes this file into each board folder.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from runner.base.storage.duckdb_connections import connect, duckdb_literal, temporary_database_path
from runner.base.storage.safe_files import create, open_to_read
from runner.version import __version__

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

FORMAT = 1
"""Version of the format, in the table `about`."""

RUN_COLUMNS: Mapping[str, str] = {
    "page": "VARCHAR", "benchmark": "VARCHAR", "task": "VARCHAR", "place": "BIGINT", "rank": "BIGINT",
    "rank_last": "BIGINT", "release": "VARCHAR", "release_sha256": "VARCHAR", "owner": "VARCHAR", "run_id": "VARCHAR",
    "accuracy": "DOUBLE", "ci_low": "DOUBLE", "ci_high": "DOUBLE", "stderr": "DOUBLE", "n": "BIGINT",
    "clusters": "BIGINT", "per_datapoint": "BIGINT", "outcomes": "VARCHAR", "failures": "BIGINT",
    "lost": "BIGINT", "undecided": "BIGINT", "no_decision": "BIGINT", "cost_usd": "DOUBLE", "protocol": "VARCHAR",
    "models": "VARCHAR", "name": "VARCHAR", "seed": "BIGINT", "point": "VARCHAR", "status": "VARCHAR",
    "trained_on": "VARCHAR", "tier": "VARCHAR", "reproduced_by": "BIGINT", "owner_runs": "BIGINT", "numbers": "VARCHAR",
    "signed": "BOOLEAN",
    "started_at": "VARCHAR", "finished_at": "VARCHAR", "version": "VARCHAR", "spec_sha256": "VARCHAR",
    "dataset_sha256": "VARCHAR", "game_sha256": "VARCHAR", "marks": "VARCHAR[]",
}  # fmt: skip
"""Columns of the table `runs`, which contains the lists of all tasks, one after the other.

`place` is the position of a row in its list, from 0. `rank` and `rank_last` are the first and the last rank in the
run's 95 % confidence set.
"""
RELEASE_COLUMNS: Mapping[str, str] = {
    "reference": "VARCHAR", "kind": "VARCHAR", "owner": "VARCHAR", "name": "VARCHAR", "version": "VARCHAR",
    "sha256": "VARCHAR", "created": "DOUBLE", "yanked": "VARCHAR", "signed": "BOOLEAN", "description": "VARCHAR",
    "licence": "VARCHAR", "what": "VARCHAR", "benchmark": "VARCHAR", "protocol": "VARCHAR", "models": "VARCHAR",
}  # fmt: skip
LINK_COLUMNS: Mapping[str, str] = {"source": "VARCHAR", "role": "VARCHAR", "target": "VARCHAR", "sha256": "VARCHAR"}


def write_board_file(
    path: Path,
    runs: Iterable[Mapping[str, object]],
    releases: Iterable[Mapping[str, object]],
    links: Iterable[Sequence[Any]],
) -> None:
    """Write the tables `about`, `runs`, `releases` and `links`.

    Raises:
        OSError, duckdb.Error: the file cannot be written.
    """
    tables = {
        "runs": (RUN_COLUMNS, runs),
        "releases": (RELEASE_COLUMNS, releases),
        "links": (LINK_COLUMNS, (dict(zip(LINK_COLUMNS, link, strict=True)) for link in links)),
    }
    # DuckDB cannot open every path, so it writes a temporary file, which is then copied.
    with temporary_database_path(path, ".new") as temporary, connect(memory="1GB") as connection:
        connection.execute(f"ATTACH {duckdb_literal(temporary)} AS board")
        connection.execute("CREATE TABLE board.about(key VARCHAR, value VARCHAR)")
        about = [["format", str(FORMAT)], ["nip-run", __version__]]
        connection.executemany("INSERT INTO board.about VALUES(?, ?)", about)
        for table, (columns, rows) in tables.items():
            _write_table(connection, table, columns, rows, temporary.parent)
        connection.execute("DETACH board")
        with open_to_read(temporary) as source, create(path) as target:
            shutil.copyfileobj(source, target)


def _write_table(
    connection: DuckDBPyConnection, table: str, columns: Mapping[str, str], rows: Iterable[Mapping[str, object]],
    folder: Path,
) -> None:  # fmt: skip
    with tempfile.NamedTemporaryFile(dir=folder, suffix=".jsonl") as lines:
        for row in rows:
            lines.write(orjson.dumps({name: row.get(name) for name in columns}) + b"\n")
        lines.flush()
        column_types = ", ".join(f"{name}: '{kind}'" for name, kind in columns.items())
        connection.execute(
            f"CREATE TABLE board.{table} AS SELECT * FROM read_json(?, format = 'newline_delimited', "
            f"columns = {{{column_types}}}, maximum_object_size = 67108864)",
            [lines.name],
        )
