"""From the tables of an earlier nip-run to those of this one: a step for each version of the schema.

A step changes what a database has, in the one transaction that all steps share, and what a row of a backup has, which
is of the same tables. A table that only takes part in what is going on (`PASSING`) is made anew: nobody misses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, inspect, update

from runner.errors import RunError
from runner.server.store.schema import VERSION, meta, metadata, uploads

PASSING = frozenset({"browsers", "uploads"})
"""Tables of what is going on: who was cut off declares the upload again, and who was signed in signs in again."""

Row = Mapping[str, Any]


def _same(_: str, row: Row) -> Row:
    return row


@dataclass(frozen=True)
class Step:
    """From one version to the next."""

    tables: Callable[[Connection], None]
    row: Callable[[str, Row], Row] = _same
    """Of a table's name and a row of the version before into the row of the next."""


def _to_2(connection: Connection) -> None:
    """Acts, browsers and competitions are new; an upload says how large it is."""
    if inspect(connection).has_table("uploads"):
        uploads.drop(connection)
    # Right as long as 2 is the newest: with 3, the tables that it changes are written out here as 2 had them.
    metadata.create_all(connection)


STEPS: Mapping[int, Step] = {1: Step(_to_2)}
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
