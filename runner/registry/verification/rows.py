"""Comparison of a run's recorded rows with those recomputed from its journal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from runner.base.storage.parquet import read_tables
from runner.base.storage.strict_json import is_same, loads
from runner.base.text import in_one_line, shortened
from runner.models.interface import LATER_CLASSES
from runner.registry.records import ROLLOUTS_FILE, published_rows
from runner.registry.verification.row_matching import Key, Row, TooFar, matched
from runner.results.folder import RunFolder
from runner.results.tables import COLUMNS

MOST_SHOWN = 80
"""Maximum number of characters shown of a name or a value."""

MAX_COLUMNS = 8
"""Maximum number of columns listed for a row."""

KEYS: Mapping[str, Sequence[str]] = {
    "rollouts": ("rollout_id",),
    "messages": ("rollout_id", "round", "channel", "agent"),
    "completions": ("rollout_id", "round", "agent", "attempt", "vote"),
}
"""The columns that identify a row of each table."""

_LATER_COLUMNS = frozenset((*LATER_CLASSES, "service_tier", "usage_estimated"))

_NOT_ITS_NAME = frozenset(("run_id",))


def different_rows(recorded: RunFolder, again: RunFolder, *, other_version: bool = False) -> Iterator[str]:
    """Yield the rows that differ, for all tables that were recorded."""
    published, but = recorded.path / ROLLOUTS_FILE, frozenset[str]()
    if published.is_file():
        rows = partial(_published, published, other_version)
        yield from _differences(ROLLOUTS_FILE, "rollouts", rows, again, but)
    for name in COLUMNS:
        path = recorded.table(name)
        if path.is_file():
            later = _later_columns_missing(path) if name == "completions" else but
            yield from _differences(path.name, name, partial(table_rows, recorded, name), again, later)
        elif not published.is_file():
            yield f"{path.name} is missing"


def different_from_published(recorded: RunFolder, again: RunFolder, *, other_version: bool = False) -> Iterator[str]:
    """Yield the published rollouts that differ from those of a run that replayed it under another name.

    Another version may have written fewer columns.
    """
    path = recorded.path / ROLLOUTS_FILE
    if not path.is_file():
        yield f"{ROLLOUTS_FILE} is missing"
        return
    yield from _differences(ROLLOUTS_FILE, "rollouts", partial(_published, path, other_version), again, _NOT_ITS_NAME)


def _differences(
    file: str, table: str, recorded: Callable[[], Iterator[Row]], again: RunFolder, but: frozenset[str]
) -> Iterator[str]:
    """Yield what is wrong with recorded rows, which are matched by key, not by position."""
    key = partial(_key, KEYS[table])
    in_order = True
    try:
        for found in matched(recorded(), table_rows(again, table), key):
            at = f"{file}, row {found.place}, {_told(table, found.key)}"
            if found.moved and in_order:
                in_order = False
                yield f"{at}: the rows are in another order, and this is the first that is not in its place"
            if found.recorded is None:
                yield f"{file}: {_told(table, found.key, whole=True)} is missing"
            elif found.again is None:
                yield f"{at}: it is recorded twice, or follows from no game of the journal"
            elif wrong := _wrong_columns(found.recorded, found.again, but):
                yield f"{at}: {wrong}"
    except TooFar as error:
        yield f"{file}: the rows are in so different an order that those after row {error.read:,} were not compared"


def _key(columns: Sequence[str], row: Row) -> Key:
    """Return the key of a row, for any content."""
    values = (row.get(name) for name in columns)
    return tuple(one if type(one) in (str, int, type(None)) else repr(one) for one in values)


def _told(table: str, key: Key, *, whole: bool = False) -> str:
    """Describe a row by its rollout; `whole`: by its complete key."""
    named = list(zip(KEYS[table], key, strict=True))[: None if whole else 1]
    return ", ".join(
        f"{name.removesuffix('_id')} {in_one_line(shortened(str(value), MOST_SHOWN))}"
        for name, value in named
        if value is not None or name == "rollout_id"
    )


def _later_columns_missing(path: Path) -> frozenset[str]:
    """Return the columns that the version that wrote a table did not have yet."""
    present = {name for (name,) in read_tables("SELECT column_name FROM (DESCRIBE rows)", {"rows": path}, {})}
    return _LATER_COLUMNS - present


def _wrong_columns(recorded: Row, again: Row, but: frozenset[str]) -> str:
    """Describe the columns that differ, with both values; empty if none does."""
    wrong = [
        name
        for name, value in again.items()
        if name not in but and not (name in recorded and is_same(recorded[name], value))
    ]
    wrong += [name for name in recorded if name not in again]
    told = [
        f"{in_one_line(shortened(name, MOST_SHOWN))}: recorded {_short(recorded, name)}, "
        f"recomputed {_short(again, name)}"
        for name in wrong[:MAX_COLUMNS]
    ]
    return "; ".join([*told, *([f"and {len(wrong) - MAX_COLUMNS:,} more columns"] if wrong[MAX_COLUMNS:] else [])])


def _short(row: Row, name: str) -> str:
    if name not in row:
        return "nothing"
    shown = repr(row[name])
    return shown if len(shown) <= MOST_SHOWN else f"{shown[: MOST_SHOWN - 3]}..."


def _published(path: Path, other_version: bool) -> Iterator[Row]:
    """Yield the rows of a `rollouts.jsonl`; columns that another version did not write are null."""
    left_out: Row | None = None
    for row in published_rows(path):
        if left_out is None:
            left_out = dict.fromkeys(COLUMNS["rollouts"].keys() - row.keys()) if other_version else {}
        yield {**left_out, **row}


def table_rows(folder: RunFolder, name: str) -> Iterator[Row]:
    """Yield the rows of a table with all current columns; those that an earlier version did not write are null.

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


def _json(value: Any) -> Any:
    """Parse a value of a JSON column."""
    if not isinstance(value, str):
        return value
    try:
        return loads(value.encode())
    except ValueError:
        return value
