"""Read a dataset file into rows with DuckDB's readers. Values stay as they are in the file.

DuckDB detects a type for each column. Detected types are useful in a SQL condition, but would change values that models
see. So this module reads values without types, and a filter runs on a separate table
(`runner.spec.datasets.typed_rows`).
"""

from __future__ import annotations

import json
from codecs import BOM_UTF16_BE, BOM_UTF16_LE, BOM_UTF32_LE
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import orjson

from runner.base.errors import SpecError
from runner.base.hashing import file_hash, tagged_hash
from runner.base.package_data import is_file
from runner.base.problems import Place, Problem
from runner.base.storage.duckdb_connections import borrow_connection, duckdb_literal, duckdb_pattern
from runner.base.storage.safe_files import open_to_read
from runner.base.text import comma_join, counted, did_you_mean, shortened
from runner.spec.datasets.csv_errors import (
    LineProblem,
    count_commented_rows,
    has_mixed_line_ends,
    ragged_line,
    repeated_columns,
    skipped_line,
    unclosed_quote,
)
from runner.spec.datasets.limits import CELL_BYTES, Meter
from runner.spec.datasets.settings import DatasetLimits, DatasetSettings
from runner.spec.datasets.subprocess import run_in_subprocess
from runner.spec.datasets.typed_rows import CSV, JSON, PARQUET, csv_options, json_format, parquet_query

if TYPE_CHECKING:
    import duckdb


@dataclass(frozen=True)
class Table:
    """The rows of a file in their order, the names of its columns, and the hash of the source."""

    rows: list[dict[str, Any]]
    columns: tuple[str, ...]
    sha256: str
    labels_are_text: bool = False
    """Whether the file format has no numbers, so that labels are read from the texts `0` and `1`."""
    notes: tuple[str, ...] = ()
    """Notes on columns that were renamed while reading."""


class Unreadable(Exception):
    """Raised if a dataset cannot be read; the message is the reason."""


HUB = "hf://"
"""Prefix of the path of a dataset on the Hugging Face Hub."""
MAX_LINE_BYTES = 16 << 20
"""Maximum length of a line in DuckDB."""
BATCH_ROWS = 1000
"""Number of rows that are fetched from DuckDB at once."""
MAX_FIRST_LINE_BYTES = 4096
"""Number of bytes of the first line that are read to detect the encoding of a file."""


def read_table(path: Path, limits: DatasetLimits) -> Table:
    """Read a file in the format of its extension.

    Raises:
        SpecError: the file has an invalid line, which the message names, or an unknown extension.
        TooLarge: the file exceeds a limit.
        Unreadable: reading took too much time or memory, or DuckDB cannot read it.
    """
    meter = Meter(limits)
    suffix = path.suffix.lower()
    if not is_file(path):
        reason = "not a regular file" if path.exists() else "there is no such file"
        raise SpecError([_problem(path, f"{reason}: {path}; correct the path")])
    if suffix in JSON:
        return _read_json(path, meter)
    if suffix in CSV:
        return _read_csv(path, meter)
    if suffix in PARQUET:
        return _read_parquet(path, meter)
    message = f"unknown extension; use one of {comma_join((*JSON, *CSV, *PARQUET))}{did_you_mean(suffix, JSON)}"
    raise SpecError([_problem(path, message)])


def _problem(path: Path, message: str, line: int = 1, column: int = 1) -> Problem:
    return Problem(Place(str(path), line, column), "dataset.path", message)


def _connection(limits: DatasetLimits) -> AbstractContextManager[duckdb.DuckDBPyConnection]:
    """Return a connection with the memory limit, for use in a `with` statement."""
    return borrow_connection(f"{limits.memory >> 20}MiB")


@contextmanager
def _unreadable_errors() -> Iterator[None]:
    """Raise errors of DuckDB as `Unreadable`."""
    import _duckdb

    try:
        yield
    except _duckdb.Error as error:
        raise Unreadable(str(error).splitlines()[0]) from error


def _read_json(path: Path, meter: Meter) -> Table:
    meter.check_bytes(path.stat().st_size)
    rows = _read_json_lines(path, meter)
    if rows is None:
        rows = _read_json_with_duckdb(path, meter)
    if len(rows) == 1 and isinstance(rows[0], list):
        rows = rows[0]
    columns: dict[str, None] = {}
    for number, row in enumerate(rows, 1):
        if not isinstance(row, dict):
            raise SpecError([_problem(path, f"line {number}: each line must be one JSON object", number)])
        columns.update(dict.fromkeys(row))
        meter.check_shape(number, len(columns))
    meter.check_shape(len(rows), len(columns))
    return Table([{name: row.get(name) for name in columns} for row in rows], tuple(columns), file_hash(path))


def _parse_json(text: bytes | str) -> Any:
    """Parse JSON. Integers of more than 64 bits become texts, because floats would not have all of their digits."""
    data = orjson.loads(text)
    return json.loads(text, parse_int=_parse_integer) if _has_large_float(data) else data


def _parse_integer(digits: str) -> int | str:
    return int(digits) if -(1 << 63) <= int(digits) < 1 << 64 else digits


def _has_large_float(value: Any) -> bool:
    if isinstance(value, float):
        return abs(value) >= 1 << 63
    values = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return any(map(_has_large_float, values))


def _read_json_lines(path: Path, meter: Meter) -> list[Any] | None:
    """Return the value in each line of a file, without importing DuckDB; None if DuckDB must read the file."""
    rows: list[Any] = []
    if json_format(path) != "newline_delimited":
        return None
    with open_to_read(path) as file:
        for line in file:
            if len(line) > MAX_LINE_BYTES:
                return None
            if not line.strip(b" \t\r\n"):
                continue
            try:
                rows.append(_parse_json(line))
            except orjson.JSONDecodeError:
                return None
            meter.check_shape(len(rows), 1)
    return rows


def _read_json_with_duckdb(path: Path, meter: Meter) -> list[Any]:
    import _duckdb

    rows: list[Any] = []
    try:
        with _connection(meter.limits) as connection:
            cursor = connection.execute(
                "SELECT json FROM read_json_objects(?, format=?, compression='none')",
                [duckdb_pattern(path), json_format(path)],
            )
            while texts := cursor.fetchmany(BATCH_ROWS):
                rows.extend(_parse_json(text) for (text,) in texts)
                meter.check_shape(len(rows), 1)
    except (_duckdb.Error, orjson.JSONDecodeError) as error:
        raise SpecError([_find_broken_line(path, error)]) from error
    return rows


def _find_broken_line(path: Path, error: Exception) -> Problem:
    """Return a problem with the number of the first invalid line. (DuckDB's errors have no number, or another one.)"""
    if (encoding_error := _find_encoding_error(path)) is not None:
        return encoding_error
    lines = _lines(path) if json_format(path) == "newline_delimited" else []
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                orjson.loads(line)
        except orjson.JSONDecodeError as json_error:
            return _problem(path, f"line {number}: not valid JSON: {json_error.msg}", number, json_error.colno)
    return _problem(path, f"not valid JSON: {str(error).splitlines()[0]}")


def _find_encoding_error(path: Path) -> Problem | None:
    """Return a problem with the first byte that is not UTF-8 and how to convert the file; None if all bytes are."""
    if (missing_mark := _find_missing_byte_order_mark(path)) is not None:
        return missing_mark
    is_csv, quote_count, row = path.suffix.lower() in CSV, 0, 0
    for number, line in enumerate(_lines(path), 1):
        row += bool(line.strip()) and not (is_csv and quote_count % 2)  # a quoted text may continue in the next line
        quote_count += line.count(b'"')
        try:
            line.decode()
        except UnicodeDecodeError as error:
            if line.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                encoding, hint = "UTF-32" if line.startswith(BOM_UTF32_LE) else "UTF-16", ""
            else:
                text = line[max(0, error.start - 10) : error.start + 10].decode("cp1252", "replace")
                encoding, hint = "WINDOWS-1252", f"; in Windows-1252 the text is {text!r}"
            place = f"row {row - is_csv}" if row > is_csv else "the header"
            message = (
                f"line {number} ({place}), byte {error.start + 1}: {line[error.start]:#04x} is not UTF-8{hint}. "
                f"{_conversion_advice(path, encoding)}"
            )
            return _problem(path, message, number, error.start + 1)
    return None


def _find_missing_byte_order_mark(path: Path) -> Problem | None:
    """Return a problem if the file is UTF-16 or UTF-32 without a mark. (Such a file is valid UTF-8 with NUL bytes.)"""
    with open_to_read(path) as file:
        start = file.readline(MAX_FIRST_LINE_BYTES)
    nul_count = start.count(0)
    if not len(start) / 3 < nul_count < len(start) or start.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
        return None
    encoding = f"UTF-{32 if 3 * nul_count > 2 * len(start) else 16}{'LE' if start[0] else 'BE'}"
    message = f"line 1: {nul_count} of {len(start)} bytes are 0x00: the file is {encoding}, not UTF-8"
    return _problem(path, f"{message}. {_conversion_advice(path, encoding)}")


def _conversion_advice(path: Path, encoding: str) -> str:
    return f"Save the file as UTF-8, for example: iconv -f {encoding} -t UTF-8 {path.name} > utf8-{path.name}"


def _lines(path: Path) -> list[bytes]:
    with open_to_read(path) as file:
        return file.read().splitlines()


def _read_csv(path: Path, meter: Meter) -> Table:
    import _duckdb

    meter.check_bytes(path.stat().st_size)
    with open_to_read(path) as file:
        if not any(line.strip() for line in file):
            return Table([], (), file_hash(path))
    if (missing_mark := _find_missing_byte_order_mark(path)) is not None:  # DuckDB may read such a file
        raise SpecError([missing_mark])
    options = f"?, all_varchar=true, {csv_options(path)}"
    query = f"SELECT * FROM read_csv({options})"
    unclosed = unclosed_quote(path)
    try:
        with _connection(meter.limits) as connection:
            if unclosed is not None:  # an error only if DuckDB does not detect another quote character
                quote = connection.execute(f"SELECT quote FROM sniff_csv({options})", [duckdb_pattern(path)]).fetchone()
                if quote == ("(empty)",):
                    raise _line_error(path, unclosed)
            columns, rows = _all_rows(connection.execute(query, [duckdb_pattern(path)]), meter)
    except _duckdb.Error as error:
        if (encoding_error := _find_encoding_error(path)) is not None:
            raise SpecError([encoding_error]) from error
        # An unclosed quote also changes the number of fields in its row.
        if unclosed is not None and unclosed[0] <= (ragged_line(path) or unclosed)[0]:
            raise _line_error(path, unclosed) from error
        check_not_ragged(path)
        raise SpecError([_problem(path, _explain_csv_error(path, error))]) from error
    skipped = skipped_line(path, len(columns))
    if skipped is not None:
        check_not_ragged(path)
        raise _line_error(path, skipped)
    for row in rows:
        row.update({name: "" for name, value in row.items() if value is None})
    notes = tuple(_notes_on_csv(path, len(columns), len(rows)))
    return Table(rows, columns, file_hash(path), labels_are_text=True, notes=notes)


def _explain_csv_error(path: Path, error: Exception) -> str:
    if has_mixed_line_ends(path):
        return "some lines end with CRLF and others with LF; save the file with the same line ends everywhere"
    lines = [line for line in str(error).splitlines() if not line.startswith("Original Line:")]
    return shortened(" ".join(lines[:2]), 300)  # the line number and the reason


def _notes_on_csv(path: Path, columns: int, rows: int) -> Iterator[str]:
    """Yield notes on the columns that were renamed and the rows that were not used."""
    for name in repeated_columns(path, columns):
        yield (
            f"{path.name} has several columns {name!r}: the first keeps its name, and the others are named {name}_1 "
            "and so on; give each column its own name"
        )
    if commented := count_commented_rows(path, columns, rows):
        yield f"{path.name}: {counted(commented, 'row')} not used, since # starts a comment; put such values in quotes"


def check_not_ragged(path: Path) -> None:
    """Check that all rows of a CSV file have as many fields as its header.

    Raises:
        SpecError: a row has another number of fields; the message has the line.
    """
    ragged = ragged_line(path) if path.suffix.lower() in CSV else None
    if ragged is not None:
        raise _line_error(path, ragged)


def _line_error(path: Path, problem: LineProblem) -> SpecError:
    line, message = problem
    return SpecError([_problem(path, message, line)])


def _read_parquet(path: Path, meter: Meter) -> Table:
    size = run_in_subprocess("measure", path, meter.limits, rows=meter.limits.rows, columns=meter.limits.columns)
    meter.check_shape(size["rows"], size["columns"])
    meter.check_bytes(size["bytes"] + size["rows"] * size["columns"] * CELL_BYTES)
    with _unreadable_errors(), _connection(meter.limits) as connection:
        cursor = connection.execute(parquet_query(connection, path), [duckdb_pattern(path)])
        columns, rows = _all_rows(cursor, meter)
    return Table(rows, columns, file_hash(path))


def _all_rows(cursor: duckdb.DuckDBPyConnection, meter: Meter) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Return the column names and all rows of a query result."""
    columns = tuple(column[0] for column in cursor.description or ())
    rows: list[dict[str, Any]] = []
    while batch := cursor.fetchmany(BATCH_ROWS):
        rows.extend(dict(zip(columns, row, strict=True)) for row in batch)
        meter.check_shape(len(rows), len(columns))
    return columns, rows


@contextmanager
def hub_file(settings: DatasetSettings) -> Iterator[tuple[Path, str]]:
    """Yield a dataset of the Hugging Face Hub as a temporary Parquet file, and the hash of its content.

    Raises:
        Unreadable: the package is not installed, or cannot load the dataset.
    """
    name, split, revision = settings.path.removeprefix(HUB), settings.split, settings.revision
    try:
        import datasets
    except ImportError as error:
        raise Unreadable("a dataset on the Hub needs an extra: pip install 'nip-run[hf]'") from error
    try:
        loaded = datasets.load_dataset(name, split=split or "train", revision=revision)
    except Exception as error:  # The library raises exceptions of several other packages.
        raise Unreadable(
            f"cannot load {name!r} from the Hub; check the dataset's path, split and revision: {error}"
        ) from error
    with TemporaryDirectory() as folder:
        path = Path(folder) / "hub.parquet"
        with _unreadable_errors(), _connection(settings.limits) as connection:
            connection.register("hub_rows", loaded.data.table)
            connection.execute("CREATE TABLE raw AS SELECT * FROM hub_rows")
            connection.unregister("hub_rows")
            query = "SELECT sha256(string_agg(sha256(CAST(raw AS VARCHAR)), '' ORDER BY rowid)) FROM raw"
            (content_hash,) = connection.execute(query).fetchone() or (None,)
            connection.execute(f"COPY raw TO {duckdb_literal(path)} (FORMAT parquet)")
            connection.execute("DROP TABLE raw")
        yield path, tagged_hash("hub", [name, split, revision, content_hash])


def rename_columns(table: Table, names: Mapping[str, str]) -> Table:
    """Return the table with renamed columns; `names` maps each new name to a column of the file.

    A column of the file whose name is one of the new names is dropped, unless it is renamed itself.
    """
    new_names = {old: new for new, old in names.items()}
    renamed = {name: new_names.get(name, name) for name in table.columns if name in new_names or name not in names}
    rows = [{new: row[old] for old, new in renamed.items()} for row in table.rows]
    return replace(table, rows=rows, columns=tuple(renamed.values()))
