"""Convert query results to CSV, JSON or Markdown, one text block for each batch of rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from runner.cli.terminal.output import to_jsonable

Rows = Iterable[Sequence[Any]]


def csv_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """Yield CSV as in RFC 4180, but with line feeds. NULL becomes an empty cell; lists and structures become JSON."""
    yield _csv_text([columns])
    for rows in batches:
        yield _csv_text([[_plain_text(value) for value in row] for row in rows])


def _csv_text(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def json_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """Yield a JSON array in ASCII, with an object for each row on its own line. Duplicate column names are numbered."""
    names = _number_duplicates(columns)
    separator = "[\n"
    for rows in batches:
        lines = [_json_text({name: _to_float(value) for name, value in zip(names, row, strict=True)}) for row in rows]
        yield separator + ",\n".join(lines)
        separator = ",\n"
    yield "[]\n" if separator == "[\n" else "\n]\n"


def markdown_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """Yield a table in GitHub's Markdown."""
    yield _markdown_text([[_escape_cell(column) for column in columns], ["---"] * len(columns)])
    for rows in batches:
        yield _markdown_text([[_escape_cell(_plain_text(value)) for value in row] for row in rows])


def _markdown_text(rows: Rows) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _escape_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")


def _plain_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return _json_text(value) if isinstance(value, (Mapping, list, tuple)) else str(value)


def _to_float(value: Any) -> Any:
    """Return a DECIMAL as a float, since JSON has no decimal type."""
    return float(value) if isinstance(value, Decimal) else value


def _json_text(value: Any) -> str:
    return json.dumps(to_jsonable(value), ensure_ascii=True, allow_nan=False)


def _number_duplicates(names: Sequence[str]) -> list[str]:
    """Make names unique as DuckDB does: a second `id` becomes `id_1`."""
    unique: dict[str, None] = {}
    for name in names:
        number, candidate = 0, name
        while candidate in unique:
            number += 1
            candidate = f"{name}_{number}"
        unique[candidate] = None
    return list(unique)


BLOCKS = {"csv": csv_blocks, "json": json_blocks, "markdown": markdown_blocks}
"""Functions that yield text blocks, by format name."""
