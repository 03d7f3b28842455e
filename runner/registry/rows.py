"""The recorded rows of a run held against those that follow from its journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from pathlib import Path
from typing import Any

from runner.errors import RunError
from runner.results.folder import RunFolder
from runner.results.tables import COLUMNS
from runner.storage.files import open_to_read
from runner.storage.parquet import read_tables

ROLLOUTS_FILE = "rollouts.jsonl"
"""The rollouts of a published run, a JSON object a line."""

MAX_LINE = 64 << 20

Row = Mapping[str, Any]


def different_rows(recorded: RunFolder, again: RunFolder, *, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """Rows that differ, by table and rollout, of all tables that were recorded; `but` are columns that may."""
    published = recorded.path / ROLLOUTS_FILE
    if published.is_file():
        yield from _differences(ROLLOUTS_FILE, published_rows(published), table_rows(again, "rollouts"), but)
    for name in COLUMNS:
        if recorded.table(name).is_file():
            ours, theirs = table_rows(recorded, name), table_rows(again, name)
            yield from _differences(recorded.table(name).name, ours, theirs, but)
        elif not published.is_file():
            yield f"{recorded.table(name).name} is missing"


def different_from_published(recorded: RunFolder, again: RunFolder) -> Iterator[str]:
    """The published rollouts of a run held against those of a run of another name that replayed it."""
    published = published_rows(recorded.path / ROLLOUTS_FILE)
    yield from _differences(ROLLOUTS_FILE, published, table_rows(again, "rollouts"), frozenset(("run_id",)))


def _differences(file: str, recorded: Iterator[Row], again: Iterator[Row], but: frozenset[str]) -> Iterator[str]:
    for place, (ours, theirs) in enumerate(zip_longest(recorded, again), 1):
        if ours is None or theirs is None:
            row = ours or theirs or {}
            why = "follows from no game of the journal" if theirs is None else "is missing"
            yield f"{file}, row {place}, rollout {row.get('rollout_id')}: it {why}"
            continue
        wrong = [name for name in theirs if name not in but and ours.get(name) != theirs[name]]
        wrong += [name for name in ours if name not in theirs]
        if wrong:
            told = "; ".join(
                f"{name}: recorded {_short(ours.get(name))}, recomputed {_short(theirs.get(name))}" for name in wrong
            )
            yield f"{file}, row {place}, rollout {theirs.get('rollout_id')}: {told}"


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def published_rows(path: Path) -> Iterator[Row]:
    """The rows of a file of rollouts as it was published.

    Raises:
        RunError: it cannot be read, or is damaged.
    """
    try:
        with open_to_read(path) as file:
            for number, line in enumerate(iter(lambda: file.readline(MAX_LINE), b""), 1):
                yield _row(line, path, number)
    except OSError as error:
        raise RunError(f"cannot read {path}: {error.strerror}") from error


def _row(line: bytes, path: Path, number: int) -> Row:
    try:
        said = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RunError(f"{path}:{number} is damaged: {error}") from error
    if not isinstance(said, dict):
        raise RunError(f"{path}:{number} is damaged: not an object")
    return {name: _json(value) if _is_json("rollouts", name) else value for name, value in said.items()}


def table_rows(folder: RunFolder, name: str) -> Iterator[Row]:
    """The rows of a table, with every column that it has today; those that an earlier version did not write are null.

    Raises:
        RunError: it cannot be read.
    """
    columns = COLUMNS[name]
    missing = ", ".join(f'NULL::{kind} AS "{column}"' for column, kind in columns.items())
    chosen = ", ".join(f'"{column}"' for column in columns)
    sql = f"SELECT {chosen} FROM (SELECT * FROM rows UNION ALL BY NAME SELECT {missing} WHERE false)"
    for values in read_tables(sql, {"rows": folder.table(name)}, {}):
        yield {
            column: _json(value) if kind == "JSON" else value
            for (column, kind), value in zip(columns.items(), values, strict=True)
        }


def _is_json(table: str, column: str) -> bool:
    return COLUMNS[table].get(column) == "JSON"


def _json(value: Any) -> Any:
    """A value of a column of JSON, which some write as text."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        return value
