"""An answer in SQL as text: CSV, JSON or Markdown, block by block as its rows come."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any

from runner.cli.terminal.output import jsonable

Rows = Iterable[Sequence[Any]]


def csv_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """RFC 4180 with line ends of one character: NULL is empty, a list or a structure is JSON."""
    yield _csv([columns])
    for rows in batches:
        yield _csv([[_plain(value) for value in row] for row in rows])


def _csv(rows: Rows) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def json_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """An array of objects, one a line, in ASCII; names that stand twice are numbered."""
    names = _unique(columns)
    before = "[\n"
    for rows in batches:
        lines = [_json({name: _number(value) for name, value in zip(names, row, strict=True)}) for row in rows]
        yield before + ",\n".join(lines)
        before = ",\n"
    yield "[]\n" if before == "[\n" else "\n]\n"


def markdown_blocks(columns: Sequence[str], batches: Iterable[Rows]) -> Iterator[str]:
    """A table of GitHub's Markdown."""
    yield _markdown([[_in_cell(column) for column in columns], ["---"] * len(columns)])
    for rows in batches:
        yield _markdown([[_in_cell(_plain(value)) for value in row] for row in rows])


def _markdown(rows: Rows) -> str:
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _in_cell(text: str) -> str:
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\r", " ").replace("\n", "<br>")


def _plain(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    return _json(value) if isinstance(value, (Mapping, list, tuple)) else str(value)


def _number(value: Any) -> Any:
    """A DECIMAL as the number it is: JSON has no other."""
    return float(value) if isinstance(value, Decimal) else value


def _json(value: Any) -> str:
    return json.dumps(jsonable(value), ensure_ascii=True, allow_nan=False)


def _unique(names: Sequence[str]) -> list[str]:
    """Each name once: a second `id` is `id_1`, as DuckDB has it."""
    found: dict[str, None] = {}
    for name in names:
        number, free = 0, name
        while free in found:
            number += 1
            free = f"{name}_{number}"
        found[free] = None
    return list(found)


BLOCKS = {"csv": csv_blocks, "json": json_blocks, "markdown": markdown_blocks}
"""By the name of the format."""
