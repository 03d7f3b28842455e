"""Uploads: declared, sent in pieces, checked, and then seen whole, or not at all.

An upload is known by what it declares and who declares it, so that whoever was cut off declares the same again and goes
on. Pieces are appended to files beside each other (`pieces.py`). Whether a blob is what was declared is seen by its
hash, once it is whole, and nothing of it is seen by others before its upload is.

    open -> checking -> published | refused | taken      and from checking back to open, where it could not be checked
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import IO, Any

import orjson
from sqlalchemy import Connection, func, insert, select, update
from sqlalchemy import delete as deleted
from sqlalchemy.exc import IntegrityError

from runner.base.errors import NotPublished, TakenError, UsageError
from runner.base.text import shortened
from runner.server.accounts.accounts import Viewer
from runner.server.settings import Settings
from runner.server.store.blobs import Blobs
from runner.server.store.database import Database
from runner.server.store.schema import files, is_release, releases, uploads
from runner.server.uploads.declaration import Declaration, DeclaredFolder
from runner.server.uploads.pieces import NoRoomError, OffsetError, Receiving, UploadPieces
from runner.server.uploads.quotas import check_quota, check_room, new_bytes, published_bytes
from runner.server.visible_tree import seen_by

OPEN, CHECKING, SEEN, REFUSED, TAKEN = "open", "checking", "published", "refused", "taken"
_ACTIVE = (OPEN, CHECKING)
MOST_ENDED, MOST_PROBLEMS, LONGEST_PROBLEM = 200, 50, 1_000
"""Of an account: so many of its uploads that ended are known, each with so many problems of so many characters."""
TOUCHED_EACH = 60.0
"""Seconds between two notes that an upload is still being sent."""


@dataclass(frozen=True)
class Upload:
    """One upload as it is now."""

    id: str
    declaration: Declaration
    state: str
    problems: Sequence[str]
    account_id: int
    missing: dict[str, tuple[int, int]]
    """Of each blob that is not whole: how many bytes it has, and how many are there."""


class Uploads:
    """All uploads of a server."""

    def __init__(self, settings: Settings, database: Database, blobs: Blobs) -> None:
        self._settings, self._database, self._blobs = settings, database, blobs
        self.pieces = UploadPieces(settings.incoming)
        self._declaration = lru_cache(maxsize=8)(self._read_declaration)

    # Declaring

    def begin(self, viewer: Viewer, declaration: Declaration, now: float) -> Upload:
        """Declare an upload, or go on with one.

        Raises:
            PermissionError: the viewer may not publish as one of its owners.
            TakenError: one of its folders is there, and this upload has not put it there.
            UsageError: the account has too much that is open, or would have published too much.
            NoRoomError: the disk has no room for it.
        """
        for folder in declaration.folders:
            if not viewer.publishes_as(folder.reference.owner):
                raise PermissionError(f"this token may not publish as {folder.reference.owner}")
        assert viewer.account_id is not None
        upload = declaration.id(viewer.account_id)
        with self._database.reading() as connection:  # and not while writers wait: it may be much that is there
            published = published_bytes(connection, viewer.account_id)
            new = new_bytes(connection, viewer.account_id, declaration.blobs)
        with suppress(IntegrityError), self._database.writing() as connection:  # somebody declares the same just now
            row = connection.execute(select(uploads.c.state).where(uploads.c.id == upload)).one_or_none()
            there = [folder.path for folder in declaration.folders if is_there(connection, folder)]
            done = row is not None and row.state == SEEN and len(there) == len(declaration.folders)
            if there and not done:
                raise TakenError(f"{there[0]} is there already")
            if row is None or not (done or row.state in _ACTIVE):
                self._open(connection, upload, viewer.account_id, declaration, now, published=published, new=new)
        return self.find(viewer, upload)

    def _open(
        self, connection: Connection, upload: str, account: int, declaration: Declaration, now: float,
        *, published: int, new: int,
    ) -> None:  # fmt: skip
        """A new upload; or one that was refused, or whose releases have gone, anew."""
        size = sum(declaration.blobs.values())
        mine = select(func.count(), func.coalesce(func.sum(uploads.c.size), 0)).where(
            uploads.c.account_id == account, uploads.c.state.in_(_ACTIVE)
        )
        count, total = connection.execute(mine).one()
        if count >= self._settings.open_uploads:
            raise UsageError(f"{count} uploads of yours are open; end them, or wait until they are forgotten")
        if total + size > self._settings.open_bytes:
            raise UsageError(
                f"your open uploads would have {total + size:,} bytes; at most {self._settings.open_bytes:,} are taken"
            )
        check_quota(self._settings, published, total, new)
        check_room(connection, self._settings, self.pieces, size, _ACTIVE)
        connection.execute(deleted(uploads).where(uploads.c.id == upload))
        row = {
            "id": upload, "account_id": account, "declared": declaration.to_bytes().decode(), "size": size,
            "state": OPEN, "problems": "[]", "touched": now,
        }  # fmt: skip
        connection.execute(insert(uploads), row)

    # Asking

    def find(self, viewer: Viewer, upload: str) -> Upload:
        """An upload of the viewer's own.

        Raises:
            NotPublished: there is none.
        """
        with self._database.reading() as connection:
            row, declaration = self._row(connection, viewer, upload)
            is_open = row.state == OPEN
            known = _known(connection, viewer, list(declaration.blobs)) if is_open else set()
        missing = {}
        for sha256, size in declaration.blobs.items() if is_open else ():
            have = None if sha256 in known else self.pieces.have(upload, sha256)
            if have is not None:
                missing[sha256] = size, have
        return Upload(upload, declaration, row.state, orjson.loads(row.problems), row.account_id, missing)

    def _row(self, connection: Connection, viewer: Viewer, upload: str) -> tuple[Any, Declaration]:
        columns = [column for column in uploads.c if column is not uploads.c.declared]
        query = select(*columns).where(uploads.c.id == upload, uploads.c.account_id == viewer.account_id)
        row = connection.execute(query).one_or_none()
        if row is None:
            raise NotPublished("there is no such upload; declare it again")
        return row, self._declaration(upload, row.state in _ACTIVE)

    def _read_declaration(self, upload: str, is_active: bool) -> Declaration:
        """Return what an upload declares. The id is its hash, but an upload that has ended keeps only a part of it."""
        del is_active  # makes the two cases different entries of the cache
        with self._database.reading() as connection:
            query = select(uploads.c.declared).where(uploads.c.id == upload)
            return Declaration.from_bytes(connection.execute(query).scalar_one())

    # Sending

    def receive(self, viewer: Viewer, upload: str, sha256: str, offset: int) -> Receiving:
        """What takes the bytes of a blob that follow the first `offset`.

        Raises:
            NotPublished: there is no such upload, or it takes no such blob now.
            OffsetError: something else is there; or a piece of it is being sent, by another connection.
            NoRoomError: nothing can be written.
        """
        now = time.time()
        with self._database.reading() as connection:
            row, declaration = self._row(connection, viewer, upload)
            known = _known(connection, viewer, [sha256])
        size = declaration.blobs.get(sha256)
        if size is None or row.state != OPEN:
            raise NotPublished("the upload takes no such blob now")
        if known or self.pieces.have(upload, sha256) is None:
            raise OffsetError(size)
        if self.pieces.room() < self._settings.spare_bytes:
            raise NoRoomError("the server's disk is full; send it later, and tell who runs it")
        if abs(now - row.touched) > TOUCHED_EACH:
            with self._database.writing() as connection:
                connection.execute(update(uploads).where(uploads.c.id == upload).values(touched=now))
        return self.pieces.receive(upload, sha256, size, offset)

    def open_blob(self, upload: str, sha256: str) -> IO[bytes]:
        """A blob of an upload: as it was sent, or where it was known, from those that are kept."""
        return self.pieces.open(upload, sha256) or self._blobs.open(sha256)

    # What became of them

    def set_state(
        self, upload: str, state: str, problems: Sequence[str], now: float, *, only: str | None = None
    ) -> bool:
        """Note what became of an upload; with `only` where it is in this state."""
        with self._database.writing() as connection:
            return self.note_state(connection, upload, state, problems, now, only=only)

    @staticmethod
    def note_state(
        connection: Connection, upload: str, state: str, problems: Sequence[str], now: float, *,
        only: str | None = None, seen: Sequence[DeclaredFolder] = (),
    ) -> bool:  # fmt: skip
        """`set_state`, within a transaction. Of one that ends the names of what is `seen` stay, and no files."""
        query = update(uploads).where(uploads.c.id == upload)
        if only is not None:
            query = query.where(uploads.c.state == only)
        told = [shortened(one, LONGEST_PROBLEM) for one in problems[:MOST_PROBLEMS]]
        values: dict[str, Any] = {"state": state, "problems": orjson.dumps(told).decode(), "touched": now}
        if state not in _ACTIVE:
            values["declared"] = Declaration([replace(one, files=[]) for one in seen]).to_bytes().decode()
        if connection.execute(query.values(**values)).rowcount == 0:
            return False
        if state not in _ACTIVE:
            _forget_ended(connection, upload)
        return True

    @staticmethod
    def touched(connection: Connection, upload: str) -> float | None:
        """When something of an upload was sent last; of one that is being checked, when it was committed."""
        return connection.execute(select(uploads.c.touched).where(uploads.c.id == upload)).scalar_one_or_none()

    def unchecked(self) -> list[tuple[str, int]]:
        """Uploads that wait for their check, as after a server was killed, each with its account."""
        with self._database.reading() as connection:
            query = select(uploads.c.id, uploads.c.account_id).where(uploads.c.state == CHECKING)
            return [(row.id, row.account_id) for row in connection.execute(query.order_by(uploads.c.touched))]

    def abandon(self, viewer: Viewer, upload: str) -> None:
        """Forget an upload of the viewer's own that is not being checked."""
        with self._database.writing() as connection:
            mine = uploads.c.id == upload, uploads.c.account_id == viewer.account_id, uploads.c.state != CHECKING
            done = connection.execute(deleted(uploads).where(*mine))
        if done.rowcount:
            self.pieces.clear(upload)

    def forget_old(self, now: float) -> None:
        """Forget the uploads that nothing was sent for in a long time, and remove what is nobody's."""
        with self._database.writing() as connection:
            old = uploads.c.touched < now - self._settings.upload_seconds, uploads.c.state != CHECKING
            connection.execute(deleted(uploads).where(*old))
        there = [upload for upload, _ in self.pieces.stored()]  # before it is asked whose they are
        with self._database.reading() as connection:
            active = {row.id for row in connection.execute(select(uploads.c.id).where(uploads.c.state.in_(_ACTIVE)))}
        for upload in there:
            if upload not in active:
                self.pieces.clear(upload)


def _forget_ended(connection: Connection, upload: str) -> None:
    """Forget the oldest ended uploads of whose account this one is."""
    account = connection.execute(select(uploads.c.account_id).where(uploads.c.id == upload)).scalar_one()
    ended = select(uploads.c.id).where(uploads.c.account_id == account, uploads.c.state.not_in(_ACTIVE))
    newest = ended.order_by(uploads.c.touched.desc(), uploads.c.id)
    old = [row.id for row in connection.execute(newest.offset(MOST_ENDED).limit(500))]
    if old:
        connection.execute(deleted(uploads).where(uploads.c.id.in_(old)))


def is_there(connection: Connection, folder: DeclaredFolder) -> bool:
    """Whether anything stands in the place of a folder: of a release itself, of its yank, or of its signature."""
    query = select(releases.c.id).where(is_release(folder.reference))
    if folder.part:
        query = query.join(files, files.c.release_id == releases.c.id).where(files.c.part == folder.part)
    return connection.execute(query.limit(1)).scalar() is not None


def _known(connection: Connection, viewer: Viewer, blobs: Sequence[str]) -> set[str]:
    """The blobs that the viewer can see already; what others keep to themselves is sent, as if it were not there."""
    query = select(files.c.sha256).join(releases, releases.c.id == files.c.release_id)
    return set(connection.execute(query.where(files.c.sha256.in_(blobs), seen_by(viewer))).scalars())
