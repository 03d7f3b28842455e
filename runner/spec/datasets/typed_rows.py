"""The rows of a dataset file as a table in DuckDB, with the types that DuckDB finds: what a filter is asked on."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from runner.base.storage.duckdb_connections import duckdb_pattern
from runner.base.storage.safe_files import open_to_read

if TYPE_CHECKING:
    import duckdb

JSON = (".jsonl", ".ndjson", ".json")
CSV = (".csv", ".tsv")
PARQUET = (".parquet", ".pq")
_AS_TEXT = ("DATE", "TIME", "TIMESTAMP", "UUID", "INTERVAL", "ENUM", "BIT")


def typed_table(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Make the table `source` of the rows of a file, in their order; the file is of a kind that is known."""
    suffix = path.suffix.lower()
    if suffix in JSON:
        _typed_json(connection, path)
    elif suffix in CSV:
        _typed_csv(connection, path)
    else:
        values = parquet_values(connection, path)
        connection.execute(f"CREATE TABLE source AS {values}", [duckdb_pattern(path)])


def _typed_json(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    described = connection.execute(
        "DESCRIBE SELECT * FROM read_json(?, format=?, sample_size=-1, hive_partitioning=false)",
        [duckdb_pattern(path), json_format(path)],
    ).fetchall()
    types = {name: "VARCHAR" if kind.startswith(_AS_TEXT) else kind for name, kind, *_ in described}
    connection.execute(
        "CREATE TABLE source AS SELECT * FROM read_json(?, format=?, columns=?, hive_partitioning=false)",
        [duckdb_pattern(path), json_format(path), types],
    )


def _typed_csv(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    reader = f"read_csv(?, {csv_options(path)}"
    described = connection.execute(f"DESCRIBE SELECT * FROM {reader})", [duckdb_pattern(path)]).fetchall()
    types = {name: "VARCHAR" if kind.startswith((*_AS_TEXT, "BOOLEAN")) else kind for name, kind, *_ in described}
    connection.execute(f"CREATE TABLE source AS SELECT * FROM {reader}, types=?)", [duckdb_pattern(path), types])


def json_format(path: Path) -> str:
    if begins_with_array(path):
        return "array"
    return "auto" if path.suffix.lower() == ".json" else "newline_delimited"


def begins_with_array(path: Path) -> bool:
    """Return whether the first character of a file of JSON opens an array."""
    with open_to_read(path) as file:
        return next((line for line in file if line.strip()), b"").removeprefix(BOM_UTF8).lstrip().startswith(b"[")


def csv_options(path: Path) -> str:
    """What DuckDB's reader of CSV is told; a file by that name is not unpacked, whatever it holds."""
    options = "header=true, sample_size=-1, hive_partitioning=false, compression='none'"
    return options + (r", delim='\t'" if path.suffix.lower() == ".tsv" else "")


def parquet_values(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """The query for the rows of a Parquet file, which has one value, the file."""
    source = "read_parquet(?, hive_partitioning=false)"
    described = connection.execute(f"DESCRIBE SELECT * FROM {source}", [duckdb_pattern(path)]).fetchall()
    return f"SELECT {selected((name, kind) for name, kind, *_ in described)} FROM {source}"


def selected(columns: Iterable[tuple[str, str]]) -> str:
    """Columns with their types, as they are selected: times become text, decimals numbers."""
    return ", ".join(f"{_cast(quoted(name), kind)} AS {quoted(name)}" for name, kind in columns)


def _cast(column: str, kind: str) -> str:
    if kind.startswith(_AS_TEXT):
        return f"CAST({column} AS VARCHAR)"
    return f"CAST({column} AS DOUBLE)" if kind.startswith("DECIMAL") else column


def quoted(name: str) -> str:
    """A name as SQL wants it."""
    return '"' + name.replace('"', '""') + '"'
