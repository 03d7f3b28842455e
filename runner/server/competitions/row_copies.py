"""Detects competitions on a copy of another owner's rows.

Such competitions are allowed, but pages and messages name the dataset that had the rows first.
"""

from __future__ import annotations

from sqlalchemy import ColumnElement, Connection, select

from runner.documents.releases.reference import Kind
from runner.registry.components.installed import DATASETS
from runner.server.accounts.accounts import Viewer
from runner.server.store.schema import competitions, files, reference_of, releases
from runner.server.visible_releases import visible_to


def find_original_dataset(connection: Connection, viewer: Viewer, competition_id: int) -> str | None:
    """Return the oldest visible dataset of another owner with the same rows as a competition, or None.

    Datasets of other competitions are compared by the hash of their rows, other datasets by the hash of their file.
    """
    query = select(competitions.c.rows_sha256, competitions.c.release_id, releases.c.owner, releases.c.id)
    query = query.join(releases, releases.c.id == competitions.c.release_id)
    dataset = connection.execute(query.where(competitions.c.id == competition_id)).one()
    same_rows = select(competitions.c.release_id).where(competitions.c.rows_sha256 == dataset.rows_sha256)
    own_files = select(files).where(files.c.release_id == dataset.release_id, files.c.part == "")
    tables = [row.sha256 for row in connection.execute(own_files) if row.path.rpartition("/")[2] in DATASETS]
    same_file = select(files.c.release_id).where(files.c.sha256.in_(tables))
    originals = [
        original
        for condition in (releases.c.id.in_(same_rows), releases.c.id.in_(same_file))
        if (original := _find_oldest_dataset(connection, viewer, dataset.owner, dataset.id, condition)) is not None
    ]
    return min(originals)[1] if originals else None


def _find_oldest_dataset(
    connection: Connection, viewer: Viewer, owner: str, release_id: int, condition: ColumnElement[bool]
) -> tuple[int, str] | None:
    """Return the id and reference of the oldest matching dataset of another owner that is older than this release."""
    query = select(releases).where(condition, releases.c.kind == str(Kind.DATASET), visible_to(viewer))
    query = query.where(releases.c.owner != owner, releases.c.id < release_id)
    row = connection.execute(query.order_by(releases.c.id).limit(1)).one_or_none()
    return row and (row.id, str(reference_of(row)))
