"""Whether a CSV file is ragged, and in which line: DuckDB takes such a file for one with a single column."""

from __future__ import annotations

import csv
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from runner.storage.files import open_to_read

DELIMITERS = (",", ";", "\t", "|")
LONGEST_FIELD = 1 << 27


def ragged_line(path: Path) -> tuple[int, str] | None:
    """The first line whose fields are not as many as the header's, and what is wrong with it.

    None where there is none, or where the file is none that Python can read.
    """
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        with TextIOWrapper(open_to_read(path), encoding="utf-8-sig", newline="") as file:
            header_line = file.readline()
            delimiter = "\t" if path.suffix.lower() == ".tsv" else max(DELIMITERS, key=header_line.count)
            file.seek(0)
            return _first_ragged(csv.reader(file, delimiter=delimiter))
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    finally:
        csv.field_size_limit(before)


def _first_ragged(rows: Any) -> tuple[int, str] | None:
    wanted, line = None, 1
    for row in rows:
        if wanted is None:
            wanted = len(row)
        elif row and len(row) != wanted:
            return line, f"line {line}: the row is ragged: it has {len(row)} fields, the header has {wanted}"
        line = rows.line_num + 1
    return None
