"""Upgrades databases and backups of earlier versions of the schema.

In a database, one function for each version changes the tables. Rows of an older backup get the columns that were added
later. `Database` and `backup.py` use this module.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sqlalchemy import Column, Connection, Float, Table, Text, inspect, text, update

from runner.base.errors import RunError
from runner.server.store.schema import VERSION, competitions, invitations, meta, metadata, submissions, uploads

TEMPORARY_TABLES = frozenset({"browsers", "uploads"})
"""Tables that backups leave out and that steps may drop: clients can upload again, and browsers can sign in again."""

Row = Mapping[str, Any]


def _to_2(connection: Connection) -> None:
    """Add acts, browsers and competitions, and the size of uploads."""
    if inspect(connection).has_table("uploads"):
        uploads.drop(connection)
    # The new tables already have the columns that later steps add, so later steps skip columns that exist.
    metadata.create_all(connection, [table for table in metadata.sorted_tables if table is not invitations])


_NEW_IN_3: Mapping[Table, Sequence[str]] = {
    competitions: ("relabelled", "withdrawn", "why"),
    submissions: ("scored",),
}


def _to_3(connection: Connection) -> None:
    """Add invitations, the times when a competition was relabelled or withdrawn, and when a submission was scored."""
    invitations.create(connection, checkfirst=True)
    for table, names in _NEW_IN_3.items():
        existing = {str(column["name"]) for column in inspect(connection).get_columns(table.name)}
        for name in names:
            if name not in existing:
                _add_column(connection, table, table.c[name])


def _add_column(connection: Connection, table: Table, column: Column[Any]) -> None:
    assert column.nullable
    kind = {Float: "FLOAT", Text: "TEXT"}[type(column.type)]
    connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))


_STEPS: Mapping[int, Callable[[Connection], None]] = {1: _to_2, 2: _to_3}
"""The function that upgrades the tables from each version to the next one."""


def upgrade(connection: Connection, version: int) -> None:
    """Upgrade a database from `version` to the current one, within the caller's transaction."""
    for step_version in range(version, VERSION):
        _STEPS[step_version](connection)
    connection.execute(update(meta).where(meta.c.key == "schema").values(value=str(VERSION)))


def upgrade_row(table: str, row: Row, version: int) -> Row:
    """Convert a row of a backup from schema `version` to the current one."""
    added = next((names for changed, names in _NEW_IN_3.items() if changed.name == table and version < 3), ())
    return {**dict.fromkeys(added), **row}


def check_version(version: int, source: str) -> None:
    """Raise RunError if a schema version is too new or does not exist; `source` names the file or database."""
    if version > VERSION:
        raise RunError(f"{source} has schema {version}, but this nip-run knows only {VERSION}; upgrade nip-run")
    if version not in (*_STEPS, VERSION):
        raise RunError(
            f"{source} has the unknown schema {version}, so it is damaged or not from nip-run; use another copy"
        )
