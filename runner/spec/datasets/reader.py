"""A dataset file into rows, through DuckDB's readers: values as the file has them.

DuckDB guesses types, and unifies them over a column. That is right for a condition in SQL and wrong for a text that
a model will see, so values are read apart from the table that a filter is asked on (`typed`).
"""

from __future__ import annotations

from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson

from runner.base.errors import Place, Problem, SpecError
from runner.base.hashing import file_hash, tagged_hash
from runner.base.package_data import is_file
from runner.base.storage.duckdb_connections import duckdb_literal, duckdb_pattern
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join, did_you_mean
from runner.spec.datasets.csv_errors import ragged_line, skipped_line, unclosed_quote
from runner.spec.datasets.limits import CELL_BYTES, Meter
from runner.spec.datasets.settings import DatasetLimits
from runner.spec.datasets.subprocess import run_apart
from runner.spec.datasets.typed_rows import CSV, JSON, PARQUET, csv_options, json_format, parquet_values

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Table:
    """All rows of a file in their order, their columns' names, and the hash of where they came from."""

    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    sha256: str
    labels_are_text: bool = False
    """Whether the file knows no numbers, so that a label is read from `0` or `1`."""


class Unreadable(Exception):
    """Why a dataset cannot be read."""


BATCH = 1000
"""Rows that are taken from DuckDB at once."""


def read_table(connection: duckdb.DuckDBPyConnection, path: Path, limits: DatasetLimits) -> Table:
    """Read a file by what its name ends in.

    Raises:
        SpecError: it is damaged, at the line where it is, or of no known kind.
        TooLarge: it is larger than it may be.
        Unreadable: it took more time or memory than it may.
        duckdb.Error: DuckDB cannot read it.
    """
    meter = Meter(limits)
    suffix = path.suffix.lower()
    if not is_file(path):
        raise SpecError([Problem(Place(str(path)), "dataset.path", f"not a file: {path}")])
    if suffix in JSON:
        return _read_json(connection, path, meter)
    if suffix in CSV:
        return _read_csv(connection, path, meter)
    if suffix in PARQUET:
        return _read_parquet(connection, path, meter)
    known = comma_join((*JSON, *CSV, *PARQUET))
    raise SpecError(
        [
            Problem(
                Place(str(path)), "dataset.path", f"a dataset's name ends in one of {known}{did_you_mean(suffix, JSON)}"
            )
        ]
    )


def _read_json(connection: duckdb.DuckDBPyConnection, path: Path, meter: Meter) -> Table:
    import duckdb

    meter.check_file(path)
    rows: list[Any] = []
    try:
        found = connection.execute(
            "SELECT json FROM read_json_objects(?, format=?, compression='none')",
            [duckdb_pattern(path), json_format(path)],
        )
        while texts := found.fetchmany(BATCH):
            rows.extend(orjson.loads(text) for (text,) in texts)
            meter.check_shape(len(rows), 1)
    except (duckdb.Error, orjson.JSONDecodeError) as error:
        raise SpecError([_broken_line(path, error)]) from error
    if len(rows) == 1 and isinstance(rows[0], list):
        rows = rows[0]
    columns: dict[str, None] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise SpecError(
                [Problem(Place(str(path), number), "dataset.path", f"line {number}: each line is one JSON object")]
            )
        columns.update(dict.fromkeys(row))
        meter.check_shape(number, len(columns))
    meter.check_shape(len(rows), len(columns))
    return Table([{name: row.get(name) for name in columns} for row in rows], tuple(columns), file_hash(path))


def _broken_line(path: Path, error: Exception) -> Problem:
    """The first line of a JSONL file that is no JSON; the readers count otherwise, or not at all."""
    if (wrong_encoding := _wrong_encoding(path)) is not None:
        return wrong_encoding
    try:
        lines = [] if json_format(path) != "newline_delimited" else _lines(path)
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


def _wrong_encoding(path: Path) -> Problem | None:
    """Return the place of the first byte that is not UTF-8, with its row and how to convert the file."""
    is_csv, quotes, row = path.suffix.lower() in CSV, 0, 0
    for number, line in enumerate(_lines(path), 1):
        row += bool(line.strip()) and not (is_csv and quotes % 2)  # a quoted text may go on in the next line
        quotes += line.count(b'"')
        try:
            line.decode()
        except UnicodeDecodeError as error:
            if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                encoding, hint = "UTF-16", ""
            else:
                encoding, hint = (
                    "WINDOWS-1252",
                    f"; in Windows-1252 the text is {_in_windows_1252(line, error.start)!r}",
                )
            place = f"row {row - is_csv}" if row > is_csv else "the header"
            return Problem(
                Place(str(path), number, error.start + 1),
                "dataset.path",
                f"line {number} ({place}), byte {error.start + 1}: {line[error.start]:#04x} is not UTF-8{hint}. Save "
                f"the file as UTF-8, for example: iconv -f {encoding} -t UTF-8 {path.name} > utf8-{path.name}",
            )
    return None


def _in_windows_1252(line: bytes, index: int) -> str:
    return line[max(0, index - 10) : index + 10].decode("cp1252", "replace")


def _lines(path: Path) -> list[bytes]:
    with open_to_read(path) as file:
        return file.read().splitlines()


def _read_csv(connection: duckdb.DuckDBPyConnection, path: Path, meter: Meter) -> Table:
    import duckdb

    meter.check_file(path)
    with open_to_read(path) as file:
        if not any(line.strip() for line in file):
            return Table([], (), file_hash(path))
    options = f"?, all_varchar=true, {csv_options(path)}"
    query = f"SELECT * FROM read_csv({options})"
    try:
        unclosed = unclosed_quote(path)
        if unclosed is not None:  # unless DuckDB finds that the file quotes by other rules
            sniffed = connection.execute(f"SELECT quote FROM sniff_csv({options})", [duckdb_pattern(path)]).fetchone()
            if sniffed == ("(empty)",):
                raise _of_line(path, *unclosed)
        columns, rows = _all_rows(connection.execute(query, [duckdb_pattern(path)]), meter)
    except duckdb.Error as error:
        if (wrong_encoding := _wrong_encoding(path)) is not None:
            raise SpecError([wrong_encoding]) from error
        check_not_ragged(path)
        message = " ".join(str(error).splitlines()[:2])  # the line, and what is wrong with it
        raise SpecError([Problem(Place(str(path)), "dataset.path", message)]) from error
    skipped = skipped_line(path, len(columns))
    if skipped is not None:
        check_not_ragged(path)
        raise _of_line(path, *skipped)
    for row in rows:
        row.update({name: "" for name, value in row.items() if value is None})
    return Table(rows, columns, file_hash(path), labels_are_text=True)


def check_not_ragged(path: Path) -> None:
    """See that all rows of a CSV file have as many fields as its header.

    Raises:
        SpecError: one has not, with its line.
    """
    found = ragged_line(path) if path.suffix.lower() in CSV else None
    if found is not None:
        raise _of_line(path, *found)


def _of_line(path: Path, line: int, message: str) -> SpecError:
    return SpecError([Problem(Place(str(path), line), "dataset.path", message)])


def _read_parquet(connection: duckdb.DuckDBPyConnection, path: Path, meter: Meter) -> Table:
    measured = run_apart("measure", path, meter.limits, rows=meter.limits.rows, columns=meter.limits.columns)
    meter.check_shape(measured["rows"], measured["columns"])
    meter.check_bytes(measured["bytes"] + measured["rows"] * measured["columns"] * CELL_BYTES)
    found = connection.execute(parquet_values(connection, path), [duckdb_pattern(path)])
    columns, rows = _all_rows(found, meter)
    return Table(rows, columns, file_hash(path))


def _all_rows(found: duckdb.DuckDBPyConnection, meter: Meter) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """The names of the columns of what was asked, and all rows of it."""
    columns = tuple(item[0] for item in found.description or ())
    rows: list[dict[str, Any]] = []
    while batch := found.fetchmany(BATCH):
        rows.extend(dict(zip(columns, row, strict=True)) for row in batch)
        meter.check_shape(len(rows), len(columns))
    return columns, rows


@contextmanager
def hub_file(
    connection: duckdb.DuckDBPyConnection, name: str, split: str | None, revision: str | None
) -> Iterator[tuple[Path, str]]:
    """A dataset of the Hugging Face Hub, read by the `datasets` package, as a Parquet file, and its content's hash.

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
    with TemporaryDirectory() as folder:
        path = Path(folder) / "hub.parquet"
        connection.execute(f"COPY raw TO {duckdb_literal(path)} (FORMAT parquet)")
        connection.execute("DROP TABLE raw")
        yield path, tagged_hash("hub", [name, split, revision, content])


def canonical_problem(name: str, value: Any) -> str | None:
    """Why a value cannot be hashed and shown: it is of a type that JSON does not have."""
    try:
        orjson.dumps(value)
    except (TypeError, ValueError) as error:
        return f"column {name!r} holds a value that is not a text, number, list or mapping ({error})"
    return None


def renamed(table: Table, names: Mapping[str, str]) -> Table:
    """The table with some columns under our names; one that had our name already gives way."""
    theirs_to_ours = {theirs: ours for ours, theirs in names.items()}
    kept = {
        name: theirs_to_ours.get(name, name) for name in table.columns if name in theirs_to_ours or name not in names
    }
    rows = [{ours: row[theirs] for theirs, ours in kept.items()} for row in table.rows]
    return replace(table, rows=rows, columns=tuple(kept.values()))
