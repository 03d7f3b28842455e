"""What is asked of a dataset file in a process of its own: how large it is unpacked, and which rows pass a filter.

DuckDB heeds neither an interrupt nor its own limit of memory in all of its functions, so this process has limits from
the system, and whoever started it ends it. It opens the file, and from then on no other.
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
from runner.spec.datasets.typed_rows import quoted, typed_table

if TYPE_CHECKING:
    import duckdb


_FIXED_WIDTH = (
    "BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT",
    "UHUGEINT", "FLOAT", "DOUBLE", "DECIMAL", "DATE", "TIME", "TIMESTAMP", "INTERVAL", "UUID",
)  # fmt: skip
"""How the types begin whose values are small."""

_ROW = "number_of_the_row_in_its_file"

NESTED_BYTES = 256
"""What Python needs for one list or mapping, or one value in it: far more than the text `[]` is long."""


def main() -> None:
    """Do what stdin says as JSON; the answer, or the error, goes to stdout as JSON."""
    task = json.loads(sys.stdin.buffer.read())  # which has names of files that are not UTF-8
    resource.setrlimit(resource.RLIMIT_AS, (task["memory"], task["memory"]))
    seconds = int(task["seconds"]) + 5
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    import duckdb

    try:
        with connect(memory=f"{task['memory'] >> 21}MiB") as connection:
            done = _TASKS[task["task"]](connection, Path(task["path"]), task)
    except duckdb.OutOfMemoryException:
        raise MemoryError from None
    except duckdb.Error as error:
        done = {"error": str(error)}
    sys.stdout.buffer.write(orjson.dumps(done))


def _measure(connection: duckdb.DuckDBPyConnection, path: Path, task: dict[str, Any]) -> dict[str, Any]:
    """Rows, columns and bytes of text of a Parquet file; the bytes only where the rows and columns are allowed."""
    source = "read_parquet(?, hive_partitioning=false)"
    values = [duckdb_pattern(path)]
    described = connection.execute(f"DESCRIBE SELECT * FROM {source}", values).fetchall()
    (rows,) = connection.execute(f"SELECT count(*) FROM {source}", values).fetchone() or (0,)
    measured = {"rows": rows, "columns": len(described), "bytes": 0}
    if rows > task["rows"] or len(described) > task["columns"]:
        return measured
    for name, kind, *_ in described:
        column = quoted(name)
        if kind == "BLOB":
            length = f"octet_length({column})"
        elif kind in ("VARCHAR", "JSON"):
            length = f"strlen({column})"
        elif kind.startswith(_FIXED_WIDTH) and "[" not in kind:
            continue
        else:
            length = f"strlen(CAST({column} AS VARCHAR))"
            if kind.startswith(("STRUCT", "MAP", "UNION")) or "[" in kind:
                length += f" + {NESTED_BYTES} * {_values_in(column)}"
        (size,) = connection.execute(f"SELECT sum({length}) FROM {source}", values).fetchone() or (0,)
        measured["bytes"] += int(size or 0)
    return measured


def _values_in(column: str) -> str:
    """SQL for about how many values a nested one holds: the brackets and commas of its JSON that stand in no text."""
    outside = rf"""regexp_replace(CAST(to_json({column}) AS VARCHAR), '"(\\.|[^"\\])*"', '', 'g')"""
    return f"(strlen({outside}) - strlen(translate({outside}, '{{[,', '')))"


def _filter(connection: duckdb.DuckDBPyConnection, path: Path, task: dict[str, Any]) -> dict[str, Any]:
    """The numbers of the rows that pass the filter, which is a SQL condition on our names."""
    typed_table(connection, path)
    if "own" in task:
        _own_table(connection, Path(task["own"]), task["types"])
    # From here on only the table in memory: a filter comes from the spec, and a spec may be a stranger's.
    connection.execute("SET enable_external_access=false; SET lock_configuration=true")
    ours = {theirs: name for name, theirs in task["columns"].items()}
    there = [row[0] for row in connection.execute("DESCRIBE source").fetchall()]
    own = task.get("types", {})
    names = {name: ours.get(name, name) for name in there if name in ours or name not in task["columns"]}
    made = {*own, *task.get("without", ())}
    picked = [f"source.{quoted(name)} AS {quoted(our)}" for name, our in names.items() if our not in made]
    # The file's own names work too, unless SQL, which ignores case, would take one for another column.
    reserved = {name.casefold() for name in (*names.values(), *made)}
    renamed = [name for our, name in task["columns"].items() if our not in made and name.casefold() not in reserved]
    picked += [f"source.{quoted(name)}" for name in renamed]
    if own:
        # A view, so that a row's long texts are not there once for each of its datapoints.
        picked += [f"own.{quoted(name)}" for name in own]
        source = f"own JOIN source ON source.rowid + 1 = own.{_ROW}"
        connection.execute(f"CREATE VIEW data AS SELECT own.rowid, {', '.join(picked)} FROM {source}")
    else:
        connection.execute(f"CREATE TABLE data AS SELECT {', '.join(picked)} FROM source ORDER BY rowid")
    # A generator seeded each time: a filter that draws at random draws the same rows.
    connection.execute("SELECT setseed(0.5)")
    statement = f"SELECT number FROM (SELECT rowid + 1 AS number, ({task['filter']}\n) AS keep FROM data) WHERE keep"
    if len(connection.extract_statements(statement)) != 1 or not _is_condition(connection, task["filter"]):
        return {"error": "one SQL condition belongs here"}
    return {"kept": [number for (number,) in connection.execute(statement).fetchall()]}


def _own_table(connection: duckdb.DuckDBPyConnection, path: Path, types: Mapping[str, str]) -> None:
    """Make the table `own`: for each datapoint the number of its row, and what is made of it."""
    columns = {_ROW: "BIGINT", **types}
    picked = ", ".join(
        f"CAST(json ->> '$[{index}]' AS {kind}) AS {quoted(name)}" for index, (name, kind) in enumerate(columns.items())
    )
    rows = "read_json_objects(?, format='newline_delimited')"
    connection.execute(f"CREATE TABLE own AS SELECT {picked} FROM {rows}", [duckdb_pattern(path)])


def _is_condition(connection: duckdb.DuckDBPyConnection, text: str) -> bool:
    """Whether a text is a condition by itself, and closes no bracket that it has not opened."""
    import duckdb

    try:
        return len(connection.extract_statements(f"SELECT 1 WHERE {text}\n")) == 1
    except duckdb.Error:
        return False


_TASKS: Mapping[str, Callable[[duckdb.DuckDBPyConnection, Path, dict[str, Any]], dict[str, Any]]] = {
    "measure": _measure,
    "filter": _filter,
}
