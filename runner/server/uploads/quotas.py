"""Limits that the server checks when an upload is declared: the storage of an account, and free disk space."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, func, select

from runner.base.errors import UsageError
from runner.server.settings import Settings
from runner.server.store.schema import files, releases, uploads
from runner.server.uploads.pieces import DiskFullError, UploadPieces


def published_bytes(connection: Connection, account_id: int) -> int:
    """Return the total size of the distinct files that an account has published."""
    query = select(files.c.sha256, files.c.size).join(releases, releases.c.id == files.c.release_id)
    own_files = query.where(releases.c.publisher_id == account_id).distinct().subquery()
    return int(connection.execute(select(func.coalesce(func.sum(own_files.c.size), 0))).scalar_one())


def new_bytes(connection: Connection, account_id: int, blobs: Mapping[str, int]) -> int:
    """Return the total size of the blobs that the account has not published yet; `blobs` maps hashes to sizes."""
    query = select(files.c.sha256).join(releases, releases.c.id == files.c.release_id)
    query = query.where(releases.c.publisher_id == account_id, files.c.sha256.in_(blobs))
    published_hashes = set(connection.execute(query).scalars())
    return sum(size for sha256, size in blobs.items() if sha256 not in published_hashes)


def check_quota(settings: Settings, published_size: int, open_size: int, new_size: int) -> None:
    """Raise UsageError if an account would exceed its quota.

    The sizes in bytes are of its published files, of its open uploads, and of the new upload's files that it has not
    published yet.
    """
    if settings.account_bytes and published_size + open_size + new_size > settings.account_bytes:
        raise UsageError(
            f"your account has published {published_size:,} bytes and has {open_size:,} bytes in open uploads; with "
            f"{new_size:,} more bytes it would exceed its quota of {settings.account_bytes:,} bytes; ask the server's "
            "administrator to raise --quota of nip-run serve"
        )


def check_disk_space(
    connection: Connection, settings: Settings, pieces: UploadPieces, size: int, active_states: Collection[str]
) -> None:
    """Raise DiskFullError if the disk has no space for `size` bytes and for the missing bytes of active uploads.

    `active_states` has the states of uploads that have not ended.
    """
    query = select(uploads.c.id, uploads.c.size).where(uploads.c.state.in_(active_states))
    declared_sizes = {row.id: int(row.size) for row in connection.execute(query)}
    available = pieces.free_bytes() - settings.spare_bytes - size
    if sum(declared_sizes.values()) <= available:  # enough without subtracting received bytes, which is slow
        return
    if sum(max(0, total - pieces.total_received_bytes(upload)) for upload, total in declared_sizes.items()) > available:
        raise DiskFullError(
            f"the server's disk has no space for an upload of {size:,} bytes; publish again later, or ask the server's "
            "administrator to free disk space"
        )
