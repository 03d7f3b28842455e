"""Competitions on rows of somebody else: anybody may make one, and it is named as that wherever it is told of."""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, select

from runner.documents.releases.reference import Kind
from runner.registry.components.installed import DATASETS
from runner.server.accounts.accounts import Viewer
from runner.server.store.schema import competitions, files, releases
from runner.server.visible_tree import seen_by


def copied_from(connection: Connection, viewer: Viewer, competition: int) -> str | None:
    """The first dataset of another owner with the same rows, of those that the viewer may know of; None: there is none.

    By the rows, where a competition is on it, too; and by its file, byte for byte, where none is.
    """
    query = select(competitions.c.rows_sha256, competitions.c.release_id, releases.c.owner, releases.c.id)
    query = query.join(releases, releases.c.id == competitions.c.release_id)
    one = connection.execute(query.where(competitions.c.id == competition)).one()
    alike = select(competitions.c.release_id).where(competitions.c.rows_sha256 == one.rows_sha256)
    mine = select(files.c.path, files.c.sha256).where(files.c.release_id == one.release_id, files.c.part == "")
    tables = [row.sha256 for row in connection.execute(mine) if row.path.rpartition("/")[2] in DATASETS]
    same = select(files.c.release_id).where(files.c.sha256.in_(tables))
    found = [
        row
        for which in (releases.c.id.in_(alike), releases.c.id.in_(same))
        if (row := _first(connection, viewer, one.owner, one.id, which)) is not None
    ]
    return min(found)[1] if found else None


def _first(
    connection: Connection, viewer: Viewer, owner: str, release: int, which: ColumnElement[bool]
) -> tuple[int, str] | None:
    """The release of another owner that was published first, and before this one."""
    query = select(releases).where(
        which, releases.c.kind == str(Kind.DATASET), releases.c.owner != owner, releases.c.id < release, seen_by(viewer)
    )
    row = connection.execute(query.order_by(releases.c.id).limit(1)).one_or_none()
    return row and (row.id, f"dataset/{row.owner}/{row.name}@{row.version}")
