"""How much an account may still publish, and how much the disk still takes."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from sqlalchemy import Connection, func, select

from runner.base.errors import UsageError
from runner.server.settings import Settings
from runner.server.store.schema import files, releases, uploads
from runner.server.uploads.pieces import NoRoomError, UploadPieces


def published_bytes(connection: Connection, account: int) -> int:
    """Of the files that an account has published, each counted once; where a server keeps them twice, it keeps once."""
    query = select(files.c.sha256, files.c.size).join(releases, releases.c.id == files.c.release_id)
    mine = query.where(releases.c.publisher_id == account).distinct().subquery()
    return int(connection.execute(select(func.coalesce(func.sum(mine.c.size), 0))).scalar_one())


def new_bytes(connection: Connection, account: int, blobs: Mapping[str, int]) -> int:
    """Of these blobs, those that the account has not published yet."""
    query = select(files.c.sha256).join(releases, releases.c.id == files.c.release_id)
    query = query.where(releases.c.publisher_id == account, files.c.sha256.in_(blobs))
    found = set(connection.execute(query).scalars())
    return sum(size for name, size in blobs.items() if name not in found)


def check_quota(settings: Settings, published: int, open_bytes: int, new: int) -> None:
    """Raises: UsageError: an account would have more than one may."""
    if settings.account_bytes and published + open_bytes + new > settings.account_bytes:
        raise UsageError(
            f"your account has published {published:,} bytes and has {open_bytes:,} in open uploads; with {new:,} more "
            f"it would be over the {settings.account_bytes:,} that one account may have here; ask who runs the server"
        )


def check_room(
    connection: Connection, settings: Settings, pieces: UploadPieces, size: int, active: Collection[str]
) -> None:
    """Raises: NoRoomError: the disk has no room for it beside all that others have declared, and not sent yet."""
    query = select(uploads.c.id, uploads.c.size).where(uploads.c.state.in_(active))
    declared = {row.id: int(row.size) for row in connection.execute(query)}
    room = pieces.room() - settings.spare_bytes - size
    # What is there of them is looked at only where it matters: there may be many files.
    if sum(declared.values()) > room and sum(max(0, of - pieces.sent(one)) for one, of in declared.items()) > room:
        raise NoRoomError("the server has no room for it now, beside what others are sending; tell who runs it")
