"""JSON lines into a Parquet file."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from runner.errors import RunError
from runner.storage.queries import duckdb_pattern

GROUP_ROWS = 10_000


def write_parquet(lines: Sequence[Path], columns: Mapping[str, str], target: Path) -> None:
    """Write files of JSON lines, in their order, as one Parquet file, whole or absent.

    Raises:
        RunError: it cannot be written.
    """
    import duckdb

    beside = target.with_name(target.name + ".new")
    beside.unlink(missing_ok=True)
    quoted = str(beside).replace("'", "''")
    connection = duckdb.connect(":memory:", config={"threads": 1, "memory_limit": "512MB"})
    try:
        connection.execute(
            "COPY (SELECT * FROM read_json(?, format='newline_delimited', columns=?, hive_partitioning=false)) TO "
            f"'{quoted}' (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {GROUP_ROWS})",
            [[duckdb_pattern(path) for path in lines], dict(columns)],
        )
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(target)
    except (duckdb.Error, OSError) as error:
        raise RunError(f"cannot write {target}: {error}") from error
    finally:
        connection.close()
