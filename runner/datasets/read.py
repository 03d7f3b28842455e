"""A dataset file into rows, through DuckDB's readers: values as the file has them, and a table to filter on.

DuckDB guesses types, and unifies them over a column. That is right for a condition in SQL and wrong for a text that
a model will see, so the values of JSON and CSV are read apart from the table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from runner.errors import Place, Problem, SpecError
from runner.hashing import file_hash, tagged_hash
from runner.storage.queries import duckdb_pattern
from runner.text import comma_join, did_you_mean

if TYPE_CHECKING:
    import duckdb

JSON = (".jsonl", ".ndjson", ".json")
CSV = (".csv", ".tsv")
PARQUET = (".parquet", ".pq")
_AS_TEXT = ("DATE", "TIME", "TIMESTAMP", "UUID", "INTERVAL", "ENUM", "BIT")


@dataclass(frozen=True)
class Table:
    """All rows of a file in their order, their columns' names, and the hash of where they came from.

    `filterable` is the name of the same rows in DuckDB, in the same order, with types.
    """

    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    sha256: str
    filterable: str = "source"
    labels_are_text: bool = False
    """Whether the file knows no numbers, so that a label is read from `0` or `1`."""


class Unreadable(Exception):
    """Why a file cannot be read, and where in it, if that is known."""

    def __init__(self, message: str, line: int | None = None) -> None:
        super().__init__(message)
        self.line = line


def read_table(connection: duckdb.DuckDBPyConnection, path: Path) -> Table:
    """Read a file by what its name ends in.

    Raises:
        SpecError: it is damaged, at the line where it is, or of no known kind.
        duckdb.Error: DuckDB cannot read it.
    """
    suffix = path.suffix.lower()
    if not path.is_file():
        raise SpecError([Problem(Place(str(path)), "dataset.path", f"not a file: {path}")])
    if suffix in JSON:
        return _read_json(connection, path)
    if suffix in CSV:
        return _read_csv(connection, path)
    if suffix in PARQUET:
        return _read_parquet(connection, path)
    known = comma_join((*JSON, *CSV, *PARQUET))
    raise SpecError(
        [
            Problem(
                Place(str(path)), "dataset.path", f"a dataset's name ends in one of {known}{did_you_mean(suffix, JSON)}"
            )
        ]
    )


def _read_json(connection: duckdb.DuckDBPyConnection, path: Path) -> Table:
    import duckdb

    form = "auto" if path.suffix.lower() == ".json" else "newline_delimited"
    try:
        found = connection.execute(
            "SELECT json FROM read_json_objects(?, format=?)", [duckdb_pattern(path), form]
        ).fetchall()
        rows = [orjson.loads(text) for (text,) in found]
    except (duckdb.Error, orjson.JSONDecodeError) as error:
        raise SpecError([_broken_line(path, error)]) from error
    if len(rows) == 1 and isinstance(rows[0], list):
        rows = rows[0]
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise SpecError(
                [Problem(Place(str(path), number), "dataset.path", f"line {number}: each line is one JSON object")]
            )
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    if rows:
        described = connection.execute(
            "DESCRIBE SELECT * FROM read_json(?, format=?, sample_size=-1, hive_partitioning=false)",
            [duckdb_pattern(path), form],
        ).fetchall()
        types = {name: "VARCHAR" if kind.startswith(_AS_TEXT) else kind for name, kind, *_ in described}
        connection.execute(
            "CREATE TABLE source AS SELECT * FROM read_json(?, format=?, columns=?, hive_partitioning=false)",
            [duckdb_pattern(path), form, types],
        )
    return Table([{name: row.get(name) for name in columns} for row in rows], columns, file_hash(path))


def _broken_line(path: Path, error: Exception) -> Problem:
    """The first line of a JSONL file that is no JSON; the readers count otherwise, or not at all."""
    try:
        lines = path.read_bytes().splitlines() if path.suffix.lower() != ".json" else []
    except OSError as unreadable:
        return Problem(Place(str(path)), "dataset.path", f"cannot read the file: {unreadable.strerror}")
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                orjson.loads(line)
        except orjson.JSONDecodeError as broken:
            message = f"line {number}: not valid JSON: {broken.msg}"
            return Problem(Place(str(path), number, broken.colno), "dataset.path", message)
    return Problem(Place(str(path)), "dataset.path", f"not valid JSON: {str(error).splitlines()[0]}")


def _read_csv(connection: duckdb.DuckDBPyConnection, path: Path) -> Table:
    if not path.read_bytes().strip():
        return Table([], (), file_hash(path))
    options = "header=true, sample_size=-1, hive_partitioning=false" + (
        r", delim='\t'" if path.suffix.lower() == ".tsv" else ""
    )
    texts = connection.execute(f"SELECT * FROM read_csv(?, all_varchar=true, {options})", [duckdb_pattern(path)])
    columns = tuple(item[0] for item in texts.description or ())
    rows = [
        {name: "" if value is None else value for name, value in zip(columns, row, strict=True)}
        for row in texts.fetchall()
    ]
    described = connection.execute(f"DESCRIBE SELECT * FROM read_csv(?, {options})", [duckdb_pattern(path)]).fetchall()
    types = {name: "VARCHAR" if kind.startswith((*_AS_TEXT, "BOOLEAN")) else kind for name, kind, *_ in described}
    connection.execute(
        f"CREATE TABLE source AS SELECT * FROM read_csv(?, {options}, types=?)", [duckdb_pattern(path), types]
    )
    return Table(rows, columns, file_hash(path), labels_are_text=True)


def _read_parquet(connection: duckdb.DuckDBPyConnection, path: Path) -> Table:
    connection.execute(
        "CREATE TABLE raw AS SELECT * FROM read_parquet(?, hive_partitioning=false)", [duckdb_pattern(path)]
    )
    return _from_typed(connection, file_hash(path))


def read_hub(connection: duckdb.DuckDBPyConnection, name: str, split: str | None, revision: str | None) -> Table:
    """Read a dataset of the Hugging Face Hub by the `datasets` package.

    Raises:
        Unreadable: the package is not installed, or cannot load the dataset.
    """
    try:
        import datasets
    except ImportError as error:
        raise Unreadable("a dataset on the Hub needs an extra: pip install 'nip-run[hf]'") from error
    try:
        loaded = datasets.load_dataset(name, split=split or "train", revision=revision)
    except Exception as error:  # the library raises its own, requests' and the hub's errors
        raise Unreadable(f"cannot load {name!r}: {error}") from error
    connection.register("hub_rows", loaded.data.table)
    connection.execute("CREATE TABLE raw AS SELECT * FROM hub_rows")
    connection.unregister("hub_rows")
    rows = "SELECT sha256(string_agg(sha256(CAST(raw AS VARCHAR)), '' ORDER BY rowid)) FROM raw"
    (content,) = connection.execute(rows).fetchone() or (None,)
    return _from_typed(connection, tagged_hash("hub", [name, split, revision, content]))


def _from_typed(connection: duckdb.DuckDBPyConnection, sha256: str) -> Table:
    """The table `raw`, whose types are its own, as rows; times become text, decimals numbers."""
    described = connection.execute("DESCRIBE raw").fetchall()
    picked = ", ".join(f"{_cast(quoted(name), kind)} AS {quoted(name)}" for name, kind, *_ in described)
    connection.execute(f"CREATE TABLE source AS SELECT {picked} FROM raw ORDER BY rowid")
    columns = tuple(name for name, *_ in described)
    found = connection.execute("SELECT * FROM source ORDER BY rowid").fetchall()
    return Table([dict(zip(columns, row, strict=True)) for row in found], columns, sha256)


def _cast(column: str, kind: str) -> str:
    if kind.startswith(_AS_TEXT):
        return f"CAST({column} AS VARCHAR)"
    return f"CAST({column} AS DOUBLE)" if kind.startswith("DECIMAL") else column


def quoted(name: str) -> str:
    """A name as SQL wants it."""
    return '"' + name.replace('"', '""') + '"'


def canonical_problem(name: str, value: Any) -> str | None:
    """Why a value cannot be hashed and shown: it is of a type that JSON does not have."""
    try:
        orjson.dumps(value)
    except (TypeError, ValueError) as error:
        return f"column {name!r} holds a value that is no text, number, list or mapping ({error})"
    return None


def renamed(table: Table, names: Mapping[str, str]) -> Table:
    """The table with some columns under our names; one that had our name already gives way."""
    theirs_to_ours = {theirs: ours for ours, theirs in names.items()}
    kept = {
        name: theirs_to_ours.get(name, name) for name in table.columns if name in theirs_to_ours or name not in names
    }
    rows = [{ours: row[theirs] for theirs, ours in kept.items()} for row in table.rows]
    if table.labels_are_text:
        for row in rows:
            row["label"] = {"0": 0, "1": 1}.get(row.get("label", ""), row.get("label"))
    return replace(table, rows=rows, columns=tuple(kept.values()))
