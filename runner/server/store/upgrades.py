"""From the tables of an earlier nip-run to those of this one: a step for each version of the schema.

A step changes what a database has, in the one transaction that all steps share, and what a row of a backup has, which
is of the same tables. A table that only takes part in what is going on (`PASSING`) is made anew: nobody misses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, Connection, Float, Table, Text, inspect, text, update

from runner.base.errors import RunError
from runner.server.store.schema import VERSION, competitions, invitations, meta, metadata, submissions, uploads

PASSING = frozenset({"browsers", "uploads"})
"""Tables of what is going on: who was cut off declares the upload again, and who was signed in signs in again."""

Row = Mapping[str, Any]


def _same(_: str, row: Row) -> Row:
    return row


@dataclass(frozen=True)
class UpgradeStep:
    """From one version to the next."""

    tables: Callable[[Connection], None]
    row: Callable[[str, Row], Row] = _same
    """Of a table's name and a row of the version before into the row of the next."""


def _to_2(connection: Connection) -> None:
    """Acts, browsers and competitions are new; an upload says how large it is."""
    if inspect(connection).has_table("uploads"):
        uploads.drop(connection)
    # Tables that are made here have what later steps add to them, which these then leave alone.
    metadata.create_all(connection, [table for table in metadata.sorted_tables if table is not invitations])


_NEW_IN_3: Mapping[Table, Sequence[str]] = {
    competitions: ("relabelled", "withdrawn", "why"),
    submissions: ("scored",),
}


def _to_3(connection: Connection) -> None:
    """Invitations are new; a competition says whether it was changed or withdrawn, a submission when it was scored."""
    invitations.create(connection, checkfirst=True)
    for table, names in _NEW_IN_3.items():
        there = {str(column["name"]) for column in inspect(connection).get_columns(table.name)}
        for name in names:
            if name not in there:
                _add(connection, table, table.c[name])


def _add(connection: Connection, table: Table, column: Column[Any]) -> None:
    assert column.nullable
    kind = {Float: "FLOAT", Text: "TEXT"}[type(column.type)]
    connection.execute(text(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {kind}"))


def _row_of_3(table: str, row: Row) -> Row:
    added = next((names for one, names in _NEW_IN_3.items() if one.name == table), ())
    return {**dict.fromkeys(added), **row}


STEPS: Mapping[int, UpgradeStep] = {1: UpgradeStep(_to_2), 2: UpgradeStep(_to_3, _row_of_3)}
"""By the version that a step begins with."""


def upgrade(connection: Connection, found: int) -> None:
    """Bring a database from the version that it has to this one; within a transaction."""
    for version in range(found, VERSION):
        STEPS[version].tables(connection)
    connection.execute(update(meta).where(meta.c.key == "schema").values(value=str(VERSION)))


def upgraded_row(table: str, row: Row, found: int) -> Row:
    """A row of a backup that was made with an earlier version."""
    for version in range(found, VERSION):
        row = STEPS[version].row(table, row)
    return row


def check_version(found: int, what: str) -> None:
    """Raises: RunError: it was made by a newer nip-run, or by none."""
    if found > VERSION:
        raise RunError(f"{what} has schema {found}, and this nip-run has {VERSION}; upgrade nip-run")
    if found not in (*STEPS, VERSION):
        raise RunError(f"{what} has schema {found}, which no nip-run has made")
