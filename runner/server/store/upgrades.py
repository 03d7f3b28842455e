"""Upgrades from earlier schema versions: one step for each version.

A step changes the tables of a database, in one transaction with all other steps, and it converts rows of a backup. The
tables in `PASSING` may be dropped and created again, because their data is temporary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Float, Table, Text, inspect, text, update

from runner.base.errors import RunError
from runner.server.store.schema import VERSION, competitions, invitations, meta, metadata, submissions, uploads

TEMPORARY_TABLES = frozenset({"browsers", "uploads"})
"""Tables with temporary data, not in backups: clients declare the upload again, or sign in again."""

Row = Mapping[str, Any]


def _unchanged(_: str, row: Row) -> Row:
    return row


@dataclass(frozen=True)
class UpgradeStep:
    """The upgrade from one version to the next."""

    tables: Callable[[Connection], None]
    row: Callable[[str, Row], Row] = _unchanged
    """Converts a row of a backup: takes the table's name and the row, returns the row of the next version."""


def _to_2(connection: Connection) -> None:
    """Add acts, browsers and competitions, and the size of uploads."""
    if inspect(connection).has_table("uploads"):
        uploads.drop(connection)
    # The new tables already have the columns that later steps add, and those steps skip existing columns.
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


def _row_of_3(table: str, row: Row) -> Row:
    added = next((names for changed, names in _NEW_IN_3.items() if changed.name == table), ())
    return {**dict.fromkeys(added), **row}


STEPS: Mapping[int, UpgradeStep] = {1: UpgradeStep(_to_2), 2: UpgradeStep(_to_3, _row_of_3)}
"""The upgrade step from each version to the next one."""


def upgrade(connection: Connection, version: int) -> None:
    """Upgrade a database from the version `found` to the current one, within the caller's transaction."""
    for step_version in range(version, VERSION):
        STEPS[step_version].tables(connection)
    connection.execute(update(meta).where(meta.c.key == "schema").values(value=str(VERSION)))


def upgrade_row(table: str, row: Row, version: int) -> Row:
    """Convert a row of a backup with schema version `found` to the current version."""
    for step_version in range(version, VERSION):
        row = STEPS[step_version].row(table, row)
    return row


def check_version(version: int, source: str) -> None:
    """Raise RunError if a schema version is newer than this nip-run's, or does not exist. `what` names the file."""
    if version > VERSION:
        raise RunError(f"{source} has schema {version}, this nip-run only knows up to {VERSION}; upgrade nip-run")
    if version not in (*STEPS, VERSION):
        raise RunError(f"{source} has schema {version}, which does not exist; the file is damaged or not from nip-run")
