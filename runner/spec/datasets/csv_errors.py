"""Find the line of a CSV file that is ragged or has an unclosed quote.

DuckDB takes a ragged file for one with a single column, or looks further down for a header and skips what is above it.
It takes a file with an unclosed quote for one that does not quote at all.
"""

from __future__ import annotations

import csv
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from runner.base.storage.safe_files import open_to_read

DELIMITERS = (",", ";", "\t", "|")
LONGEST_FIELD = 1 << 27

Line = tuple[int, str]
"""The number of a line, and what is wrong with it."""


def ragged_line(path: Path) -> Line | None:
    """The first line whose fields are not as many as the header's, and what is wrong with it.

    None where there is none, or where the file is none that Python can read.
    """

    def found(file: TextIOWrapper) -> Line | None:
        header_line = file.readline()
        delimiter = max(_delimiters(path), key=header_line.count)
        file.seek(0)
        return _first_ragged(csv.reader(file, delimiter=delimiter))

    return _asked_of(path, found)


def skipped_line(path: Path, width: int) -> Line | None:
    """The first row, which is no comment, where it is not as wide as the header that was found, and so stands above it.

    None where it is the header, or where the file is none that Python can read.
    """

    def found(file: TextIOWrapper) -> Line | None:
        line = None
        for delimiter in _delimiters(path):
            file.seek(0)
            line = _first_if_not(width, csv.reader(file, delimiter=delimiter))
            if line is None:
                return None
        return line

    return _asked_of(path, found)


def unclosed_quote(path: Path) -> Line | None:
    """Return the first row with a quoted text that is not closed, or None, also if Python cannot read the file.

    A `.tsv` file may have no quoted text: a lone quote is an error only if other fields are whole quoted texts.
    """

    def found(file: TextIOWrapper) -> Line | None:
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

    return _asked_of(path, found)


def _asked_of(path: Path, question: Callable[[TextIOWrapper], Line | None]) -> Line | None:
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        with TextIOWrapper(open_to_read(path), encoding="utf-8-sig", newline="") as file:
            return question(file)
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    finally:
        csv.field_size_limit(before)


def _delimiters(path: Path) -> tuple[str, ...]:
    return ("\t",) if path.suffix.lower() == ".tsv" else DELIMITERS


def _first_if_not(width: int, rows: Any) -> Line | None:
    line = 1
    for row in rows:
        if len(row) == width:
            return None
        if row and not row[0].startswith("#"):
            return (
                line,
                f"line {line}: the header is the first row, and the one that was found below has {width} fields",
            )
        line = rows.line_num + 1
    return None


def _first_ragged(rows: Any) -> Line | None:
    wanted, line = None, 1
    for row in rows:
        if wanted is None:
            wanted = len(row)
        elif row and len(row) != wanted:
            return line, f"line {line}: the row is ragged: it has {len(row)} fields, the header has {wanted}"
        line = rows.line_num + 1
    return None
