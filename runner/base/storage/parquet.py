"""JSON lines into a Parquet file, in memory that does not grow with them.

DuckDB holds one file of lines, or as much of it as its buffer takes, as one chunk, and the chunks of one row group
until that is written. So a file of lines is of a bounded size or a single line, and a group ends by its bytes too.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from runner.base.errors import RunError
from runner.base.storage.duckdb_connections import connect, duckdb_literal, duckdb_pattern, lent
from runner.base.storage.safe_files import create

GROUP_ROWS = 10_000
GROUP_BYTES = 16 << 20
MEMORY = 256 << 20
"""Enough for everything but a single line of more than the next."""
LONG_LINE = 16 << 20
"""DuckDB's own limit for a line."""
BESIDE = ".table.parquet.new"
"""What a table is written as, before it takes its place: a file's own name may be one that DuckDB does not take."""
_COPIES = 8
"""How often a single line stands in memory, at most: twice in the buffer that it is read by, then as it is parsed,
gathered, encoded and compressed."""


def read_tables(sql: str, tables: Mapping[str, Path], parameters: Mapping[str, Any]) -> Iterator[tuple[Any, ...]]:
    """The rows that a question of ours finds in Parquet files, each a table by its name.

    Raises:
        RunError: a file cannot be read.
    """
    import duckdb

    try:
        with TemporaryDirectory(prefix="nip-run-") as spill, connect(memory=f"{MEMORY}B", spill=Path(spill)) as files:
            for name, path in tables.items():
                files.execute(f"CREATE VIEW {name} AS SELECT * FROM read_parquet({duckdb_literal(path)})")
            found = files.execute(sql, dict(parameters))
            while rows := found.fetchmany(GROUP_ROWS):
                yield from rows
    except (duckdb.Error, OSError) as error:
        raise RunError(
            f"cannot read {' and '.join(map(str, tables.values()))}: {str(error).splitlines()[0]}"
        ) from error


def write_parquet(
    lines: Sequence[Path],
    columns: Mapping[str, str],
    target: Path,
    *,
    longest: int = 0,
    beside: Path | None = None,
) -> None:
    """Write files of JSON lines, in their order, as one Parquet file, whole or absent.

    Columns of JSON are written as plain strings: other readers take Parquet's JSON type for bytes.

    `longest` is the size of the longest line. `beside` is what it is written as before it takes its place, with a plain
    name of its own where others are written at the same time.

    Raises:
        RunError: it cannot be written.
    """
    import duckdb

    beside = beside or target.with_name(BESIDE)
    line = max(longest, LONG_LINE)
    texts = ", ".join(f'"{name}"::VARCHAR AS "{name}"' for name, kind in columns.items() if kind == "JSON")
    chosen = f"* REPLACE ({texts})" if texts else "*"
    try:
        beside.unlink(missing_ok=True)
        with lent(f"{MEMORY + _COPIES * (line - LONG_LINE)}B") as connection:
            connection.execute(
                f"COPY (SELECT {chosen} FROM read_json(?, format='newline_delimited', columns=?, "
                f"maximum_object_size=?, hive_partitioning=false)) TO {duckdb_literal(beside)} "
                f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {GROUP_ROWS}, ROW_GROUP_SIZE_BYTES {GROUP_BYTES})",
                [[duckdb_pattern(path) for path in lines], dict(columns), line],
            )
        with beside.open("rb") as file:
            os.fsync(file.fileno())
        beside.replace(target)
    except (duckdb.Error, OSError) as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise RunError(f"cannot write {target}: {error}") from error


def try_parquet(folder: Path, columns: Mapping[str, str]) -> None:
    """Write an empty table in a folder and remove it: whatever would keep one from being written there shows.

    Raises:
        RunError: none can be written.
    """
    try:
        with TemporaryDirectory(dir=folder, prefix=".trial-") as inside:
            lines = Path(inside) / "trial.jsonl"
            create(lines).close()
            write_parquet([lines], columns, lines.with_suffix(".parquet"))
    except OSError as error:
        raise RunError(f"cannot write {folder}: {error.strerror}") from error
