"""Load the rows of a dataset file into a DuckDB table with detected types, which a filter can query."""

from __future__ import annotations

from codecs import BOM_UTF8
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
"""Detected types whose values remain text, as they are written in the file."""


def create_typed_table(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Create the table `source` with the rows of a file of a known format, in their order."""
    suffix = path.suffix.lower()
    if suffix in JSON:
        _load_json(connection, path)
    elif suffix in CSV:
        _load_csv(connection, path)
    else:
        values = parquet_query(connection, path)
        connection.execute(f"CREATE TABLE source AS {values}", [duckdb_pattern(path)])


def _load_json(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Create the table `source` from a JSON file."""
    columns = connection.execute(
        "DESCRIBE SELECT * FROM read_json(?, format=?, sample_size=-1, hive_partitioning=false)",
        [duckdb_pattern(path), json_format(path)],
    ).fetchall()
    types = {name: "VARCHAR" if type_.startswith(_AS_TEXT) else type_ for name, type_, *_ in columns}
    connection.execute(
        "CREATE TABLE source AS SELECT * FROM read_json(?, format=?, columns=?, hive_partitioning=false)",
        [duckdb_pattern(path), json_format(path), types],
    )


def _load_csv(connection: duckdb.DuckDBPyConnection, path: Path) -> None:
    """Create the table `source` from a CSV file."""
    reader = f"read_csv(?, {csv_options(path)}"
    columns = connection.execute(f"DESCRIBE SELECT * FROM {reader})", [duckdb_pattern(path)]).fetchall()
    types = {name: "VARCHAR" if type_.startswith((*_AS_TEXT, "BOOLEAN")) else type_ for name, type_, *_ in columns}
    connection.execute(f"CREATE TABLE source AS SELECT * FROM {reader}, types=?)", [duckdb_pattern(path), types])


def json_format(path: Path) -> str:
    """Return the format of a JSON file as DuckDB calls it: `array`, `newline_delimited`, or `auto` if unknown."""
    with open_to_read(path) as file:
        first_line = next((line for line in file if line.strip()), b"")
    if first_line.removeprefix(BOM_UTF8).lstrip().startswith(b"["):
        return "array"
    return "auto" if path.suffix.lower() == ".json" else "newline_delimited"


def csv_options(path: Path) -> str:
    """Return the options of DuckDB's CSV reader. A file is never unpacked, even if it is an archive."""
    options = "header=true, sample_size=-1, hive_partitioning=false, compression='none'"
    return options + (r", delim='\t'" if path.suffix.lower() == ".tsv" else "")


def parquet_query(connection: duckdb.DuckDBPyConnection, path: Path) -> str:
    """Return SQL that selects the rows of a Parquet file, with the path as its parameter.

    Times are selected as text, and decimals as numbers.
    """
    source = "read_parquet(?, hive_partitioning=false)"
    columns = connection.execute(f"DESCRIBE SELECT * FROM {source}", [duckdb_pattern(path)]).fetchall()
    selected = ", ".join(f"{_cast(quote(name), type_)} AS {quote(name)}" for name, type_, *_ in columns)
    return f"SELECT {selected} FROM {source}"


def _cast(column: str, type_: str) -> str:
    if type_.startswith(_AS_TEXT):
        return f"CAST({column} AS VARCHAR)"
    return f"CAST({column} AS DOUBLE)" if type_.startswith("DECIMAL") else column


def quote(name: str) -> str:
    """Return a name quoted for SQL."""
    return '"' + name.replace('"', '""') + '"'
