"""Compare the rows in a run's tables with the rows recomputed from its journal, for `verify` and `reproduce`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from runner.base.storage.parquet import read_tables
from runner.base.storage.strict_json import is_same, parse_strict_json
from runner.base.text import in_one_line, shortened
from runner.base.token_classes import NEW_TOKEN_CLASSES
from runner.registry.rollouts_file import ROLLOUTS_FILE, read_published_rows
from runner.results.folder import RunFolder
from runner.results.table_columns import COLUMNS, OPTIONAL_COLUMNS

Row = Mapping[str, Any]

MAX_SHOWN = 80
"""Maximum number of characters of a name or value in a message."""

MAX_COLUMNS = 8
"""Maximum number of columns of a row in a message."""

KEYS: Mapping[str, Sequence[str]] = {
    "rollouts": ("rollout_id",),
    "messages": ("rollout_id", "round", "channel", "agent"),
    "completions": ("rollout_id", "round", "agent", "attempt", "vote"),
}
"""The columns that identify a row of each table."""

_NEW_COLUMNS = frozenset((*NEW_TOKEN_CLASSES, "service_tier", "usage_estimated"))
"""Columns of `completions` that earlier versions of nip-run did not write."""

_PLUGIN_COLUMNS = frozenset(("plugin_metrics",))
"""Columns that are not recomputed, because this would import plugins."""
_RUN_ID_COLUMN = frozenset(("run_id",))


def find_row_differences(recorded: RunFolder, recomputed: RunFolder, *, allow_missing: bool = False) -> Iterator[str]:
    """Yield a message for each row of a recorded table that differs from the recomputed row.

    With `allow_missing`, `rollouts.jsonl` may lack columns, because another version of nip-run wrote it.
    """
    published_file, no_columns = recorded.path / ROLLOUTS_FILE, frozenset[str]()
    if published_file.is_file():
        rows = _read_published_rows(published_file, allow_missing)
        yield from _compare_rows(ROLLOUTS_FILE, "rollouts", rows, recomputed, no_columns)
    for name in COLUMNS:
        path = recorded.table(name)
        if path.is_file():
            ignored = _find_missing_columns(path) if name == "completions" else no_columns
            yield from _compare_rows(path.name, name, read_table_rows(recorded, name), recomputed, ignored)
        elif not published_file.is_file():
            yield f"{path.name} is missing"


def find_published_differences(recorded: RunFolder, replay: RunFolder, *, allow_missing: bool = False) -> Iterator[str]:
    """Yield a message for each row of a `rollouts.jsonl` that differs from the row of a replay, except in the run id.

    `allow_missing` has the same meaning as in `find_row_differences`.
    """
    path = recorded.path / ROLLOUTS_FILE
    if not path.is_file():
        yield f"{ROLLOUTS_FILE} is missing"
        return
    yield from _compare_rows(
        ROLLOUTS_FILE, "rollouts", _read_published_rows(path, allow_missing), replay, _RUN_ID_COLUMN
    )


def _compare_rows(
    file: str, table: str, recorded: Iterator[Row], recomputed: RunFolder, ignored: frozenset[str]
) -> Iterator[str]:
    """Yield a message for each recorded row that is wrong.

    Both tables are in the order of the plan. If a row is missing, added or moved, the rows after it are not compared.
    """
    for position, (row, expected) in enumerate(zip_longest(recorded, read_table_rows(recomputed, table)), 1):
        if row is None:
            yield f"{file} ends before row {position}: {_describe_row(table, expected)} is missing"
            return
        if expected is None:
            yield f"{file}, row {position}, {_describe_row(table, row)}: the journal gives only {position - 1:,} rows"
            return
        if any(row.get(name) != expected[name] for name in KEYS[table]):
            yield (
                f"{file}, row {position}: {_describe_row(table, row)}, but the journal gives "
                f"{_describe_row(table, expected)} here; the rows after it were not compared"
            )
            return
        if columns := _describe_differing_columns(row, expected, ignored):
            yield f"{file}, row {position}, rollout {expected['rollout_id']}: {columns}"


def _describe_row(table: str, row: Row) -> str:
    """Describe a row by the columns that identify it."""
    return ", ".join(
        f"{name.removesuffix('_id')} {in_one_line(shortened(str(row.get(name)), MAX_SHOWN))}"
        for name in KEYS[table]
        if row.get(name) is not None or name == "rollout_id"
    )


def _find_missing_columns(path: Path) -> frozenset[str]:
    """Return the columns in `_NEW_COLUMNS` that a table lacks, because an earlier version of nip-run wrote it."""
    present = {name for (name,) in read_tables("SELECT column_name FROM (DESCRIBE rows)", {"rows": path}, {})}
    return _NEW_COLUMNS - present


def _describe_differing_columns(recorded: Row, recomputed: Row, ignored: frozenset[str]) -> str:
    """Describe the columns that differ, with both values; empty if no column differs."""
    columns = [
        name
        for name, value in recomputed.items()
        if name not in ignored | _PLUGIN_COLUMNS and not _is_recorded(recorded, name, value)
    ]
    columns += [name for name in recorded if name not in recomputed]
    descriptions = [
        f"{in_one_line(shortened(name, MAX_SHOWN))}: recorded {_format_value(recorded, name)}, "
        f"recomputed {_format_value(recomputed, name)}"
        for name in columns[:MAX_COLUMNS]
    ]
    if len(columns) > MAX_COLUMNS:
        descriptions.append(f"and {len(columns) - MAX_COLUMNS:,} more columns")
    return "; ".join(descriptions)


def _is_recorded(recorded: Row, name: str, value: Any) -> bool:
    """Return whether a row has a value, or has no such column because an earlier version wrote it."""
    if name not in recorded:
        return value is None and name in OPTIONAL_COLUMNS
    return is_same(recorded[name], value)


def _format_value(row: Row, name: str) -> str:
    if name not in row:
        return "nothing"
    text = repr(row[name])
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def _read_published_rows(path: Path, allow_missing: bool) -> Iterator[Row]:
    """Yield the rows of a `rollouts.jsonl`. With `allow_missing`, columns that are not in the first row are None."""
    null_columns: Row | None = None
    for row in read_published_rows(path):
        if null_columns is None:
            null_columns = dict.fromkeys(COLUMNS["rollouts"].keys() - row.keys()) if allow_missing else {}
        yield {**null_columns, **row}


def read_table_rows(folder: RunFolder, name: str) -> Iterator[Row]:
    """Yield the rows of a table with all columns of this version; columns that the table lacks are None.

    Raises:
        RunError: the table cannot be read.
    """
    columns = COLUMNS[name]
    null_columns = ", ".join(f'NULL::{column_type} AS "{column}"' for column, column_type in columns.items())
    selected = ", ".join(f'"{column}"' for column in columns)
    sql = f"SELECT {selected} FROM (SELECT * FROM rows UNION ALL BY NAME SELECT {null_columns} WHERE false)"
    for values in read_tables(sql, {"rows": folder.table(name)}, {}):
        yield {
            column: _parse_json(value) if column_type == "JSON" else value
            for (column, column_type), value in zip(columns.items(), values, strict=True)
        }


def _parse_json(value: Any) -> Any:
    """Return the parsed value of a JSON column, or the value itself if it is not valid JSON."""
    if not isinstance(value, str):
        return value
    try:
        return parse_strict_json(value.encode())
    except ValueError:
        return value
