"""The recorded rows of a run held against those that follow from its journal."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from runner.registry.matching import Key, Row, TooFar, matched
from runner.registry.records import ROLLOUTS_FILE, published_rows
from runner.results.folder import RunFolder
from runner.results.tables import COLUMNS
from runner.storage.parquet import read_tables
from runner.text import in_one_line, shortened

MOST_SHOWN = 80
"""Characters of a name that a stranger gave."""

MAX_COLUMNS = 8
"""So many columns of one row are told."""

MAX_ADDED = 10_000
"""So many rows that are too many are looked for at once."""

KEYS: Mapping[str, Sequence[str]] = {
    "rollouts": ("rollout_id",),
    "messages": ("rollout_id", "round", "channel", "agent"),
    "completions": ("rollout_id", "round", "agent", "attempt", "vote"),
}
"""What says of which game, and of what in it, a row is."""


def different_rows(recorded: RunFolder, again: RunFolder, *, but: frozenset[str] = frozenset()) -> Iterator[str]:
    """Rows that differ, by table and rollout, of all tables that were recorded; `but` are columns that may."""
    published = recorded.path / ROLLOUTS_FILE
    if published.is_file():
        yield from _differences(ROLLOUTS_FILE, "rollouts", lambda: _published(published), again, but)
    for name in COLUMNS:
        path = recorded.table(name)
        if path.is_file():
            yield from _differences(path.name, name, partial(table_rows, recorded, name), again, but)
        elif not published.is_file():
            yield f"{path.name} is missing"


def different_from_published(recorded: RunFolder, again: RunFolder) -> Iterator[str]:
    """The published rollouts of a run held against those of a run of another name that replayed it."""
    path = recorded.path / ROLLOUTS_FILE
    if not path.is_file():
        yield f"{ROLLOUTS_FILE} is missing"
        return
    yield from _differences(ROLLOUTS_FILE, "rollouts", lambda: _published(path), again, frozenset(("run_id",)))


def _differences(
    file: str, table: str, recorded: Callable[[], Iterator[Row]], again: RunFolder, but: frozenset[str]
) -> Iterator[str]:
    """What is wrong with recorded rows, each thing once: they are matched by what they are of, and not by place."""
    key = partial(_key, KEYS[table])
    added: list[tuple[Key, str]] = []
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
                added.append((found.key, at))
                if len(added) == MAX_ADDED:
                    yield from _added(added, again, table)
                    added = []
            elif wrong := _wrong_columns(found.recorded, found.again, but):
                yield f"{at}: {wrong}"
    except TooFar as error:
        yield f"{file}: the rows are in so different an order that those after row {error.read:,} were not compared"
    yield from _added(added, again, table)


def _added(added: Sequence[tuple[Key, str]], again: RunFolder, table: str) -> Iterator[str]:
    """Rows that are too many: of a rollout that has its row already, or of none of the journal."""
    if not added:
        return
    asked = {key for key, _ in added}
    known = {key for key in map(partial(_key, KEYS[table]), table_rows(again, table)) if key in asked}
    for key, at in added:
        yield f"{at}: it {'stands there once too often' if key in known else 'follows from no game of the journal'}"


def _key(columns: Sequence[str], row: Row) -> Key:
    """What a row is of, for rows of any content."""
    values = (row.get(name) for name in columns)
    return tuple(one if isinstance(one, (str, int, type(None))) else repr(one) for one in values)


def _told(table: str, key: Key, *, whole: bool = False) -> str:
    """What a row is of, in words; `whole`: with what parts it from the others of its rollout."""
    named = list(zip(KEYS[table], key, strict=True))[: None if whole else 1]
    return ", ".join(
        f"{name.removesuffix('_id')} {in_one_line(shortened(str(value), MOST_SHOWN))}"
        for name, value in named
        if value is not None or name == "rollout_id"
    )


def _wrong_columns(ours: Row, theirs: Row, but: frozenset[str]) -> str:
    """The columns in which a recorded row is not what follows, with both values; nothing where it is."""
    wrong = [name for name in theirs if name not in but and ours.get(name) != theirs[name]]
    wrong += [name for name in ours if name not in theirs]
    told = [
        f"{in_one_line(shortened(name, MOST_SHOWN))}: recorded {_short(ours.get(name))}, "
        f"recomputed {_short(theirs.get(name))}"
        for name in wrong[:MAX_COLUMNS]
    ]
    return "; ".join([*told, *([f"and {len(wrong) - MAX_COLUMNS:,} more columns"] if wrong[MAX_COLUMNS:] else [])])


def _short(value: Any) -> str:
    shown = repr(value)
    return shown if len(shown) <= 80 else f"{shown[:77]}..."


def _published(path: Path) -> Iterator[Row]:
    for said in published_rows(path):
        yield {name: _json(value) if _is_json("rollouts", name) else value for name, value in said.items()}


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
