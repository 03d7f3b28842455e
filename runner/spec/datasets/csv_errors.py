"""Find the line of a CSV file that has another number of fields than the header, or an unclosed quote.

DuckDB does not report these errors. It reads a file with different numbers of fields as a single column, or finds a
header further down and skips the lines above it. In a file with an unclosed quote, it treats quotes as plain text.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from runner.base.storage.safe_files import open_to_read

DELIMITERS = (",", ";", "\t", "|")
MAX_FIELD = 1 << 27

T = TypeVar("T")

LineProblem = tuple[int, str]
"""A line number, and a message about the line."""


def ragged_line(path: Path) -> LineProblem | None:
    """Return the first line with another number of fields than the header; None if all have the same.

    The result is also None if Python cannot read the file.
    """

    def find(file: TextIOWrapper) -> LineProblem | None:
        header_line = file.readline()
        delimiter = max(_delimiters(path), key=header_line.count)
        file.seek(0)
        return _first_ragged_row(csv.reader(file, delimiter=delimiter))

    return read_with(path, find)


def skipped_line(path: Path, width: int) -> LineProblem | None:
    """Return the first row that is not a comment, if it is not the header, so that DuckDB has skipped it.

    `width` is the number of fields of DuckDB's header. The result is None if no row was skipped, or if Python cannot
    read the file.
    """

    def find(file: TextIOWrapper) -> LineProblem | None:
        line = None
        for delimiter in _delimiters(path):
            file.seek(0)
            line = _first_row_of_other_width(width, csv.reader(file, delimiter=delimiter))
            if line is None:
                return None
        return line

    return read_with(path, find)


def unclosed_quote(path: Path) -> LineProblem | None:
    """Return the first row with a quoted text that is not closed; None if there is none.

    The result is also None if Python cannot read the file. In a `.tsv` file, which may have quotes as plain text, a
    single quote is an error only if other fields are completely quoted.
    """

    def find(file: TextIOWrapper) -> LineProblem | None:
        if path.suffix.lower() == ".tsv":
            plain = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if not any(len(field) > 1 and field[0] == field[-1] == '"' for row in plain for field in row):
                return None
            file.seek(0)
        header_line = file.readline()
        file.seek(0)
        rows = csv.reader(file, delimiter=max(_delimiters(path), key=header_line.count), strict=True)
        line, number = 1, 0
        try:
            for row in rows:
                line, number = rows.line_num + 1, number + bool(row)
        except csv.Error:
            return line, (
                f"line {line} (row {number}): a quoted text that begins in this row is not closed; close it, and write "
                "each quote inside a quoted text twice"
            )
        return None

    return read_with(path, find)


def read_with(path: Path, find: Callable[[TextIOWrapper], T | None]) -> T | None:
    """Return the result of a function for an open file, without a byte order mark; None if Python cannot read it."""
    previous_limit = csv.field_size_limit(MAX_FIELD)
    try:
        with TextIOWrapper(open_to_read(path), encoding="utf-8-sig", newline="") as file:
            return find(file)
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    finally:
        csv.field_size_limit(previous_limit)


def _delimiters(path: Path) -> tuple[str, ...]:
    return ("\t",) if path.suffix.lower() == ".tsv" else DELIMITERS


def _first_row_of_other_width(width: int, rows: Any) -> LineProblem | None:
    line = 1
    for row in rows:
        if len(row) == width:
            return None
        if row and not row[0].startswith("#"):
            return (
                line,
                f"line {line}: the header, with {width} fields, must be the first row; remove the rows above it",
            )
        line = rows.line_num + 1
    return None


def _first_ragged_row(rows: Any) -> LineProblem | None:
    header_width, line = None, 1
    for row in rows:
        if header_width is None:
            header_width = len(row)
        elif row and len(row) != header_width:
            return (
                line,
                f"line {line}: the row has {len(row)} fields, but the header has {header_width}; correct the row",
            )
        line = rows.line_num + 1
    return None
