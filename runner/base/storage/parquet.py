"""Conversion of JSON lines to a Parquet file, in bounded memory.

DuckDB reads a small file as one chunk, and buffers all chunks of a row group until it writes the group. So callers
limit the size of each file with several lines, and the size of a row group is limited in bytes too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.base.errors import RunError
from runner.base.storage.duckdb_connections import borrow_connection, connect, duckdb_literal, duckdb_pattern
from runner.base.storage.safe_files import create

GROUP_ROWS = 4_096
GROUP_BYTES = 16 << 20
MEMORY = 256 << 20
"""Memory limit in bytes for lines of at most `LONG_LINE` bytes; longer lines raise the limit."""
LONG_LINE = 16 << 20
"""DuckDB's default limit for a line, in bytes."""
TEMPORARY_NAME = ".table.parquet.new"
"""Name of a table while it is written, since DuckDB may not accept the final name."""
_COPIES = 8
"""Maximum number of copies of one line in memory: two in the read buffer, then parsed, grouped, encoded, compressed."""


def read_tables(sql: str, tables: Mapping[str, Path], parameters: Mapping[str, object]) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a query over Parquet files. `tables` maps table names to files.

    Raises:
        RunError: a file cannot be read.
    """
    import _duckdb

    try:
        with TemporaryDirectory(prefix="nip-run-") as spill, connect(memory=f"{MEMORY}B", spill=Path(spill)) as db:
            for name, path in tables.items():
                db.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({duckdb_literal(path)})")
            result = db.execute(sql, dict(parameters))
            while rows := result.fetchmany(GROUP_ROWS):
                yield from rows
    except (_duckdb.Error, OSError) as error:
        raise RunError(
            f"cannot read {' and '.join(map(str, tables.values()))}: {str(error).splitlines()[0]}"
        ) from error


def write_parquet(
    lines: Sequence[Path], columns: Mapping[str, str], target: Path, *, longest: int = 0, temporary: Path | None = None
) -> None:
    """Convert files of JSON lines, in their order, to one Parquet file, which is complete or absent.

    JSON columns are written as plain strings, because other readers take Parquet's JSON type for bytes.

    `longest` is the size of the longest line in bytes. `temporary` is the path of the new file while it is written,
    with a plain name; simultaneous writers need different ones.

    Raises:
        RunError: the file cannot be written.
    """
    import _duckdb

    temporary = temporary or target.with_name(TEMPORARY_NAME)
    line = max(longest, LONG_LINE)
    texts = ", ".join(f'"{name}"::VARCHAR AS "{name}"' for name, kind in columns.items() if kind == "JSON")
    columns_sql = f"* REPLACE ({texts})" if texts else "*"
    try:
        temporary.unlink(missing_ok=True)
        with borrow_connection(f"{MEMORY + _COPIES * (line - LONG_LINE)}B") as connection:
            connection.execute(
                f"COPY (SELECT {columns_sql} FROM read_json(?, format='newline_delimited', columns=?, "
                f"maximum_object_size=?, hive_partitioning=false)) TO {duckdb_literal(temporary)} "
                f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {GROUP_ROWS}, ROW_GROUP_SIZE_BYTES {GROUP_BYTES})",
                [[duckdb_pattern(path) for path in lines], dict(columns), line],
            )
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except (_duckdb.Error, OSError) as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise RunError(f"cannot write {target}: {error}") from error


def check_writable(folder: Path, columns: Mapping[str, str]) -> None:
    """Check that a table can be written in a folder, by writing an empty table and removing it.

    Raises:
        RunError: the table cannot be written.
    """
    try:
        with TemporaryDirectory(dir=folder, prefix=".trial-") as inside:
            lines = Path(inside) / "trial.jsonl"
            create(lines).close()
            write_parquet([lines], columns, lines.with_suffix(".parquet"))
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}") from error
