"""Tasks on a dataset file in a separate process: measure its unpacked size, and select rows with a filter.

Some DuckDB functions ignore interrupts and the memory limit. So the operating system limits this process, and its
parent kills it after a timeout. After the dataset file, this process can open no other file.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from runner.base.storage.duckdb_connections import connect, duckdb_pattern
from runner.spec.datasets.typed_rows import create_typed_table, quote

if TYPE_CHECKING:
    import duckdb


_FIXED_WIDTH = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
    "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "DATE", "TIME", "TIMESTAMP", "INTERVAL", "UUID",
)  # fmt: skip
"""Prefixes of types whose values are small."""

_ROW_NUMBER_COLUMN = "number_of_the_row_in_its_file"

NESTED_BYTES = 256
"""Bytes that Python needs for a list or a mapping, or for a value in it. (The text `[]` has only 2 bytes.)"""


def main() -> None:
    """Run the task that stdin describes as JSON, and write the result or the error to stdout as JSON."""
    task = json.loads(sys.stdin.buffer.read())  # not decoded here: file names may not be UTF-8
    resource.setrlimit(resource.RLIMIT_AS, (task["memory"], task["memory"]))
    seconds = int(task["seconds"]) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import _duckdb

    try:
        with connect(memory=f"{task['memory'] >> 21}MiB") as connection:
            result = _TASKS[task["task"]](connection, Path(task["path"]), task)
    except _duckdb.OutOfMemoryException:
        raise MemoryError from None
    except _duckdb.Error as error:
        result = {"error": str(error)}
    sys.stdout.buffer.write(orjson.dumps(result))


def _measure(connection: duckdb.DuckDBPyConnection, path: Path, task: dict[str, Any]) -> dict[str, Any]:
    """Return the numbers of rows, columns and bytes of a Parquet file.

    The bytes are computed only if rows and columns are within the limits.
    """
    source = "read_parquet(?, hive_partitioning=false)"
    values = [duckdb_pattern(path)]
    columns = connection.execute(f"DESCRIBE SELECT * FROM {source}", values).fetchall()
    (rows,) = connection.execute(f"SELECT count(*) FROM {source}", values).fetchone() or (0,)
    measured = {"rows": rows, "columns": len(columns), "bytes": 0}
    if rows > task["rows"] or len(columns) > task["columns"]:
        return measured
    for name, type_, *_ in columns:
        column = quote(name)
        if type_ == "BLOB":
            length = f"octet_length({column})"
        elif type_ in ("VARCHAR", "JSON"):
            length = f"strlen({column})"
        elif type_.startswith(_FIXED_WIDTH) and "[" not in type_:
            continue
        else:
            length = f"strlen(CAST({column} AS VARCHAR))"
            if type_.startswith(("STRUCT", "MAP", "UNION")) or "[" in type_:
                length += f" + {NESTED_BYTES} * {_estimate_values(column)}"
        (size,) = connection.execute(f"SELECT sum({length}) FROM {source}", values).fetchone() or (0,)
        measured["bytes"] += int(size or 0)
    return measured


def _estimate_values(column: str) -> str:
    """Return SQL that estimates the number of values in a nested column: brackets and commas outside texts."""
    outside = rf"""regexp_replace(CAST(to_json({column}) AS VARCHAR), '"(\\.|[^"\\])*"', '', 'g')"""
    return f"(strlen({outside}) - strlen(translate({outside}, '{{[,', '')))"


def _filter(connection: duckdb.DuckDBPyConnection, path: Path, task: dict[str, Any]) -> dict[str, object]:
    """Return the numbers of the rows that pass the filter, which is a SQL condition.

    `columns` of the task has the file's name of each renamed column, by its new name. `added_rows` is a file with the
    columns that nip-run adds to each datapoint, such as the id, and `added_types` has their SQL types.
    """
    create_typed_table(connection, path)
    if "added_rows" in task:
        _create_added_table(connection, Path(task["added_rows"]), task["added_types"])
    # Allow only the tables in memory from here on, because the filter's author may not be trusted.
    connection.execute("SET enable_external_access=false; SET lock_configuration=true")
    new_names = {old: name for name, old in task["columns"].items()}
    columns = [row[0] for row in connection.execute("DESCRIBE source").fetchall()]
    added_types = task.get("added_types", {})
    names = {name: new_names.get(name, name) for name in columns if name in new_names or name not in task["columns"]}
    replaced = {*added_types, *task.get("removed_columns", ())}
    selected = [f"source.{quote(name)} AS {quote(new)}" for name, new in names.items() if new not in replaced]
    # Original names work, too, unless they equal another column's name in SQL, which ignores case.
    reserved = {name.casefold() for name in (*names.values(), *replaced)}
    renamed = [name for new, name in task["columns"].items() if new not in replaced and name.casefold() not in reserved]
    selected += [f"source.{quote(name)}" for name in renamed]
    if added_types:
        # A view avoids copies of a row's long texts for each of its datapoints.
        selected += [f"added.{quote(name)}" for name in added_types]
        source = f"added JOIN source ON source.rowid + 1 = added.{_ROW_NUMBER_COLUMN}"
        connection.execute(f"CREATE VIEW data AS SELECT added.rowid, {', '.join(selected)} FROM {source}")
    else:
        connection.execute(f"CREATE TABLE data AS SELECT {', '.join(selected)} FROM source ORDER BY rowid")
    # Seed the generator each time, so that a filter that uses random numbers selects the same rows.
    connection.execute("SELECT setseed(0.5)")
    statement = f"SELECT number FROM (SELECT rowid + 1 AS number, ({task['filter']}\n) AS keep FROM data) WHERE keep"
    if len(connection.extract_statements(statement)) != 1 or not _is_condition(connection, task["filter"]):
        return {"error": "the filter must be one SQL condition"}
    return {"passing": [number for (number,) in connection.execute(statement).fetchall()]}


def _create_added_table(connection: duckdb.DuckDBPyConnection, path: Path, types: Mapping[str, str]) -> None:
    """Create the table `added`, with the row number of each datapoint and its added columns."""
    columns = {_ROW_NUMBER_COLUMN: "BIGINT", **types}
    selected = ", ".join(
        f"CAST(json ->> '$[{index}]' AS {type_}) AS {quote(name)}"
        for index, (name, type_) in enumerate(columns.items())
    )
    rows = "read_json_objects(?, format='newline_delimited')"
    connection.execute(f"CREATE TABLE added AS SELECT {selected} FROM {rows}", [duckdb_pattern(path)])


def _is_condition(connection: duckdb.DuckDBPyConnection, text: str) -> bool:
    """Return whether a text is one complete SQL condition, without a closing bracket that it has not opened."""
    import _duckdb

    try:
        return len(connection.extract_statements(f"SELECT 1 WHERE {text}\n")) == 1
    except _duckdb.Error:
        return False


_TASKS: Mapping[str, Callable[[duckdb.DuckDBPyConnection, Path, dict[str, Any]], dict[str, Any]]] = {
    "measure": _measure,
    "filter": _filter,
}
