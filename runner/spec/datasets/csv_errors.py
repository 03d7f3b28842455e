"""Find the line of a CSV file that has another number of fields than the header, or an unclosed quote.

DuckDB does not report these errors. It reads a file with different numbers of fields as a single column, or takes a
later line as the header and skips the lines before it. If a quote is not closed, it treats quotes as plain text.
"""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Callable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import Any, TypeVar

from runner.base.storage.safe_files import open_to_read

DELIMITERS = (",", ";", "\t", "|")
MAX_FIELD_BYTES = 1 << 27

T = TypeVar("T")

LineProblem = tuple[int, str]
"""A line number, and a message about the line."""


def ragged_line(path: Path) -> LineProblem | None:
    """Return the first line with another number of fields than the header; None if there is none.

    The result is also None if Python cannot read the file.
    """

    def find(file: TextIOWrapper) -> LineProblem | None:
        rows = numbered_rows(csv.reader(file, delimiter=_detect_delimiter(path, file)))
        _, header = next(rows, (1, []))
        for line, row in rows:
            if row and len(row) != len(header):
                problem = f"the row has {len(row)} fields, but the header has {len(header)}; correct the row"
                return line, f"line {line}: {problem}"
        return None

    return read_with(path, find)


def skipped_line(path: Path, width: int) -> LineProblem | None:
    """Return the first row that is not a comment, if it is not the header, so that DuckDB has skipped it.

    `width` is the number of fields of DuckDB's header. The result is None if no row was skipped, or if Python cannot
    read the file.
    """

    def find(file: TextIOWrapper) -> LineProblem | None:
        problem = None
        for delimiter in _delimiters(path):
            file.seek(0)
            problem = _first_row_of_other_width(width, csv.reader(file, delimiter=delimiter))
            if problem is None:
                return None
        return problem

    return read_with(path, find)


def repeated_columns(path: Path, width: int) -> list[str]:
    """Return the names that several columns of the header have. `width` is the number of fields of DuckDB's header."""

    def find(file: TextIOWrapper) -> list[str]:
        for delimiter in _delimiters(path):
            file.seek(0)
            header = next((row for row in csv.reader(file, delimiter=delimiter) if len(row) == width), None)
            if header is not None:
                return [name for name, count in Counter(map(str.strip, header)).items() if name and count > 1]
        return []

    return read_with(path, find) or []


def count_commented_rows(path: Path, width: int, count: int) -> int:
    """Return how many rows below the header start with `#` and are not among the `count` rows that DuckDB read.

    `width` is the number of fields of DuckDB's header.
    """

    def find(file: TextIOWrapper) -> int:
        has_comments = any(line.startswith("#") for line in file)
        for delimiter in _delimiters(path) if has_comments else ():
            file.seek(0)
            rows = (row for row in csv.reader(file, delimiter=delimiter) if row)
            if any(len(row) == width for row in rows):  # up to the header
                starts = [row[0][:1] for row in rows]
                return min(starts.count("#"), len(starts) - count)
        return 0

    return max(read_with(path, find) or 0, 0)


def has_mixed_line_ends(path: Path) -> bool:
    """Return whether some lines of a file end with CRLF and others with LF, which DuckDB cannot read."""
    with open_to_read(path) as file:
        return len({line.endswith(b"\r\n") for line in file if line.endswith(b"\n")}) > 1


def unclosed_quote(path: Path) -> LineProblem | None:
    """Return the first row with a quoted text that is not closed; None if there is none.

    The result is also None if Python cannot read the file. In a `.tsv` file, quotes may be plain text, so an unclosed
    quote is an error only if another field is completely quoted.
    """

    def find(file: TextIOWrapper) -> LineProblem | None:
        if path.suffix.lower() == ".tsv":
            plain = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
            if not any(len(field) > 1 and field[0] == field[-1] == '"' for row in plain for field in row):
                return None
            file.seek(0)
        rows = csv.reader(file, delimiter=_detect_delimiter(path, file), strict=True)
        line, row_count = 1, 0
        try:
            for row in rows:
                line, row_count = rows.line_num + 1, row_count + bool(row)
        except csv.Error:
            return line, (
                f"line {line} (row {row_count}): a quoted text that begins in this row is not closed; close it, and "
                "write each quote inside a quoted text twice"
            )
        return None

    return read_with(path, find)


def read_with(path: Path, find: Callable[[TextIOWrapper], T | None]) -> T | None:
    """Open a file, skip a byte order mark, and return the result of `find`; None if Python cannot read the file."""
    previous_limit = csv.field_size_limit(MAX_FIELD_BYTES)
    try:
        with TextIOWrapper(open_to_read(path), encoding="utf-8-sig", newline="") as file:
            return find(file)
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    finally:
        csv.field_size_limit(previous_limit)


def numbered_rows(reader: Any) -> Iterator[tuple[int, list[str]]]:
    """Yield each row of a CSV reader, with the number of its first line."""
    line = 1
    for row in reader:
        yield line, row
        line = reader.line_num + 1


def _delimiters(path: Path) -> tuple[str, ...]:
    return ("\t",) if path.suffix.lower() == ".tsv" else DELIMITERS


def _detect_delimiter(path: Path, file: TextIOWrapper) -> str:
    """Return the delimiter that occurs most often in the header. The file is then at its start."""
    delimiter = max(_delimiters(path), key=file.readline().count)
    file.seek(0)
    return delimiter


def _first_row_of_other_width(width: int, reader: Any) -> LineProblem | None:
    for line, row in numbered_rows(reader):
        if len(row) == width:
            return None
        if row and not row[0].startswith("#"):
            problem = f"the header, with {width} fields, must be the first row; remove the rows above it"
            return line, f"line {line}: {problem}"
    return None
