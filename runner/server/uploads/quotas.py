"""Limits on the size of the files that an account publishes, and on free disk space, when an upload is declared."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, func, select

from runner.base.errors import UsageError
from runner.server.settings import Settings
from runner.server.store.schema import files, releases, uploads
from runner.server.uploads.pieces import DiskFullError, UploadPieces


def published_bytes(connection: Connection, account: int) -> int:
    """Return the total size of the distinct files that an account has published."""
    query = select(files.c.sha256, files.c.size).join(releases, releases.c.id == files.c.release_id)
    own_files = query.where(releases.c.publisher_id == account).distinct().subquery()
    return int(connection.execute(select(func.coalesce(func.sum(own_files.c.size), 0))).scalar_one())


def new_bytes(connection: Connection, account: int, blobs: Mapping[str, int]) -> int:
    """Return the total size of the blobs that the account has not published yet; `blobs` maps hashes to sizes."""
    query = select(files.c.sha256).join(releases, releases.c.id == files.c.release_id)
    query = query.where(releases.c.publisher_id == account, files.c.sha256.in_(blobs))
    published = set(connection.execute(query).scalars())
    return sum(size for sha256, size in blobs.items() if sha256 not in published)


def check_quota(settings: Settings, published: int, open_bytes: int, new: int) -> None:
    """Raise UsageError if an account would exceed its quota.

    `published` is the size of its published files, `open_bytes` that of its open uploads, and `new` that of the files
    that it declares now and has not published.
    """
    if settings.account_bytes and published + open_bytes + new > settings.account_bytes:
        raise UsageError(
            f"your account has published {published:,} bytes and has {open_bytes:,} bytes in open uploads; with "
            f"{new:,} more bytes it would exceed its quota of {settings.account_bytes:,} bytes; ask the server's "
            "administrator to raise --quota of nip-run serve"
        )


def check_disk_space(
    connection: Connection, settings: Settings, pieces: UploadPieces, size: int, active: Collection[str]
) -> None:
    """Raise DiskFullError if the disk has no space for `size` bytes and for the missing bytes of unfinished uploads.

    `active` has the states of unfinished uploads.
    """
    query = select(uploads.c.id, uploads.c.size).where(uploads.c.state.in_(active))
    declared = {row.id: int(row.size) for row in connection.execute(query)}
    available = pieces.free_bytes() - settings.spare_bytes - size
    if sum(declared.values()) <= available:  # enough without subtracting received bytes, which is slow
        return
    if sum(max(0, total - pieces.total_received(upload)) for upload, total in declared.items()) > available:
        raise DiskFullError(
            f"the server's disk has no space for an upload of {size:,} bytes; publish again later, or ask the server's "
            "administrator to free disk space"
        )
